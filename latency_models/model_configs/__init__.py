"""Reads the layers of a model from its config.json, completely or not at all.

`keys` takes fields and reports unread ones; `mixers`, `mlps` and `precision` read the parts of a layer; `kinds` counts
their weights and the memory of a request; `reading` joins them; `kv_groups` counts KV memory as vLLM does.
"""
