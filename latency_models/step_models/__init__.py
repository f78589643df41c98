"""Devices by the step models of aiconfigurator-core: any model that it knows, on any GPU for which it has tables.

    --device h200_sxm:deepseek-ai/DeepSeek-V3:tp=8

`naming` parses such a name, `library` calls the library, `sampling` makes the tables of the form `steps`, `profiles`
makes the profile. The library is optional (the extra `devices`).
"""
