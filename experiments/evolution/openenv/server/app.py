"""HTTP and WebSocket server: `python -m servegym_search.server.app --port 8000`."""

import argparse

import uvicorn
from openenv.core.env_server.http_server import create_app

from ..models import ProgramAction, ScoreObservation
from .environment import SearchEnvironment

app = create_app(SearchEnvironment, ProgramAction, ScoreObservation, env_name="servegym_search", max_concurrent_envs=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(app, host=given.host, port=given.port)


if __name__ == "__main__":
    main()
