"""Worth, which is worked out without branches, is what expected-gain's rule makes of a request."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from servegym.baselines.observations.scales import share
from servegym.baselines.observations.worth import worth_of
from servegym.baselines.schedulers.expected_gain import expected_gain_of
from servegym.simulator.compilation.digests import plain_function
from servegym.simulator.records.types import REQUEST

seconds = st.one_of(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), st.floats(-100, 100))


@given(seconds, st.floats(0, 2), st.sampled_from([0.0, 3.0]), st.floats(0.25, 4), st.floats(1, 2000), st.floats(0, 2))
@example(0.0, 0.5, 3.0, 1.0, 10.0, 0.5)
@example(-1.0, 1.0, 0.0, 1.0, 2.0, 0.5)
def test_worth_is_the_share_of_what_expected_gain_expects(slack_s, interval_s, first_gain, gain, tokens, pace_s):
    request = np.zeros(1, REQUEST).view(np.recarray)[0]
    request.token_interval_s, request.decode_token_gain, request.first_token_gain = interval_s, gain, first_gain
    request.num_output_tokens = 0 if first_gain > 0.0 else 1
    expected = plain_function(expected_gain_of)(request, slack_s, pace_s, tokens)
    wanted = plain_function(share)(expected, gain * tokens + first_gain)
    assert plain_function(worth_of)(slack_s, interval_s, first_gain, gain, tokens, pace_s) == wanted
