"""The trainer in one file: advantages by hand, an update that learns, and a whole run with next to nothing."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from experiments.environments import ppo  # noqa: E402
from experiments.environments.ppo import Agent, Rollout, Settings, gae, update  # noqa: E402

TINY = Settings(envs=2, steps=256, rollout=32, requests=12, episodes=3, epochs=2, minibatches=2)


def test_advantages_by_hand() -> None:
    """Two steps, of which the first ends an episode in the second environment."""
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    values = torch.tensor([[0.5, 0.5], [0.25, 0.25]])
    ends = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    found = gae(rewards, values, ends, torch.tensor([4.0, 4.0]), gamma=0.5, lam=0.5)
    last = 2 + 0.5 * 4 - 0.25
    assert found.tolist() == [[1 + 0.5 * 0.25 - 0.5 + 0.25 * last, 1 - 0.5], [last, last]]


def test_an_agent_begins_with_the_base_and_learns_what_pays() -> None:
    """Actions above 0 pay: after some updates the mean of the actor is above where it was."""
    torch.manual_seed(0)
    agent = Agent(3, 1, log_std=-1.0)
    seen = torch.rand(64, 4, 3)
    assert (agent.distribution(seen).mean == 0).all()
    optimizer = torch.optim.Adam(agent.parameters(), 3e-3)
    for _ in range(5):
        with torch.no_grad():
            distribution = agent.distribution(seen)
            actions = distribution.sample()
            log_probs = distribution.log_prob(actions).sum(-1)
        pay = actions.squeeze(-1)
        update(agent, optimizer, Rollout(seen, actions, log_probs, pay, pay), Settings())
    assert agent.distribution(seen).mean.min() > 0.05


@pytest.mark.slow
def test_it_trains_and_is_compared_with_the_base(capsys: pytest.CaptureFixture[str]) -> None:
    more = ppo.main(TINY)
    assert np.isfinite(more).all()
    assert "TDG ratio on 3 held-out episodes" in capsys.readouterr().out
    again = ppo.main(TINY)
    assert again == more  # the same seed


def test_an_untrained_agent_is_the_base() -> None:
    agent = Agent(25, 4, log_std=-1.0)
    assert ppo.evaluate(agent, TINY).tolist() == ppo.evaluate(None, TINY).tolist()


def test_environments_of_choices_are_refused() -> None:
    with pytest.raises(SystemExit, match="ClusterRouting-v0 has choices for actions"):
        ppo.make_envs(Settings(environment="ClusterRouting-v0"), "train", 2)
