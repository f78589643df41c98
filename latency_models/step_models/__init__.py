"""Devices by the step models of aiconfigurator-core: any model that it knows, on any GPU that it has tables of.

    --device h200_sxm:deepseek-ai/DeepSeek-V3:tp=8

`naming` reads such a name, `library` asks the library, `sampling` makes the tables of the form `steps`, `profiles` the
profile. The library is optional (the extra `devices`).
"""
