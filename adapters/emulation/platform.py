"""A vLLM platform for emulated devices, which keeps settings that vLLM's CPU platform would override."""

from typing import Any

from vllm.platforms.cpu import CpuPlatform

from servegym.adapters.emulation.settings import DEVICE, Settings


class Platform(CpuPlatform):
    """Keeps asynchronous scheduling as configured, and takes the profile's KV block size as the default."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        import os

        asynchronous = vllm_config.scheduler_config.async_scheduling
        cache = vllm_config.cache_config
        chosen = cache.block_size if cache.user_specified_block_size else None
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous
        if chosen is None and os.environ.get(DEVICE):
            cache.block_size = Settings.from_environment(os.environ).profile.kv.block_tokens
