"""What a model's config.json says of its size, layer by layer, read completely or refused.

`keys` takes fields and says which nobody took; `mixers`, `mlps` and `precision` read the parts of a layer; `kinds`
counts their weights and what they keep; `reading` joins them; `kv_groups` counts KV memory as vLLM does.
"""
