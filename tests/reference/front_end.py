"""The front end between clients and engines: docs/feature_rules.md."""

from dataclasses import dataclass

from .requests import Request


@dataclass
class FrontEnd:
    request_s: float = 0.0
    prompt_s_per_token: float = 0.0
    streamed_s_per_token: float = 0.0
    back_s: float = 0.0
    one_process: bool = False

    done_s: float = 0.0  # when its one process has finished all work that has arrived so far

    @property
    def way_back_s(self) -> float:
        return self.streamed_s_per_token + self.back_s

    def begins(self, now_s: float, takes_s: float) -> float:
        """Return when it begins work that arrives now."""
        if not self.one_process:
            return now_s
        begin_s = max(now_s, self.done_s)
        self.done_s = begin_s + takes_s
        return begin_s

    def request(self, r: Request, now_s: float) -> float:
        """Return when a request that is sent now is ready."""
        takes_s = self.request_s + r.prompt_tokens * self.prompt_s_per_token
        return self.begins(now_s, takes_s) + takes_s

    def token(self, now_s: float) -> float:
        """Return when a token that is emitted now is streamed."""
        return self.begins(now_s, self.streamed_s_per_token)
