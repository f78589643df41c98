"""Policies that cannot be compiled: one line with the policy, the file, the line, and what there is instead."""

import re

import numpy as np
import pytest

from servegym.errors import PolicyError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.policies.policy import Parameter, Parameters, Policy
from servegym.simulator.policies.scores import score
from servegym.simulator.records.signatures import router, scheduler
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")

P = Parameters(Parameter("gamma", 1.0, ""), Parameter("max_num_batched_tokens", 8, "", integer=True))
TABLE = {"a": 1.0}


@scheduler
def misspelt_context(context, ranks, limits):
    ranks[0].key = context.enigne.free_blocks


@scheduler
def misspelt_parameter(context, ranks, limits):
    ranks[0].key = P.read(context).gama


@score(P)
def misspelt_in_score(request, engine, now_s, estimates, p):
    return p.gama


@scheduler
def misspelt_rank(context, ranks, limits):
    ranks[0].teir = 1


@kernel
def prompt_of(request):
    return request.promt_tokens


@scheduler
def misspelt_in_helper(context, ranks, limits):
    ranks[0].key = prompt_of(context.requests[0])


@scheduler
def misspelt_limit(context, ranks, limits):
    limits.max_num_batched_tokns = 4


@scheduler
def object_of_python(context, ranks, limits):
    ranks[0].key = TABLE["a"]


@scheduler
def opens_a_file(context, ranks, limits):
    with open("there") as file:
        ranks[0].key = len(file.read())


@scheduler
def unknown_name(context, ranks, limits):
    ranks[0].key = what_is_this  # noqa: F821


@scheduler
def word_for_a_number(context, ranks, limits):
    ranks[0].key = "first"


@kernel
def worth_nothing(request):
    request.arrival_s + 1.0


@scheduler
def nothing_for_a_number(context, ranks, limits):
    ranks[0].key = worth_nothing(context.requests[0])


@score(P)
def endless_score(request, engine, now_s, estimates, p):
    while True:
        pass


@score(P)
def score_of_the_future(request, engine, now_s, estimates, p):
    return request.output_tokens


@scheduler
def returns_something(context, ranks, limits):
    return "high"


@scheduler
def new_array(context, ranks, limits):
    for position in np.argsort(context.queue):
        ranks[position].tier = 0


def plain_worth(request):
    return request.arrival_s


@scheduler
def plain_helper(context, ranks, limits):
    ranks[0].key = plain_worth(context.requests[0])


@scheduler
def named_as_in_vllm(context, ranks, limits):
    limits.long_prefill_token_threshold = 512


@scheduler
def named_as_before(context, ranks, limits):
    limits.token_budget = 512


@scheduler
def old_arguments(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.max_num_batched_tokens = 1


CONTEXT = "now_s, engine, requests, queue, state, parameters, estimator, scratch"


@pytest.mark.parametrize(("function", "words"), [
    (misspelt_context, f"there is no enigne in SchedulerContext; there are {CONTEXT}"),
    (misspelt_parameter, "there is no gama in Parameters; there are gamma, max_num_batched_tokens"),
    (misspelt_in_score, "there is no gama in Parameters; there are gamma, max_num_batched_tokens"),
    (misspelt_rank, "there is no field teir; did you mean tier?"),
    (misspelt_in_helper, "there is no field promt_tokens; did you mean prompt_tokens"),
    (misspelt_limit, "there is no field max_num_batched_tokns; did you mean max_num_batched_tokens"),
    (object_of_python, "Untyped global name 'TABLE'"),
    (opens_a_file, "construct is not supported"),
    (unknown_name, "NameError: name 'what_is_this' is not defined"),
    (word_for_a_number, "text ('first') stands where a number should be"),
    (nothing_for_a_number, "a number is missing: a function that is called here returns none"),
    (endless_score, "endless_score returns no number; each path through it should end in return, and its loops should"),
    (score_of_the_future, "output lengths are hidden from policies; there are num_output_tokens (those so far), "),
    (returns_something, "a policy returns nothing, and writes what it decides into its last arguments"),
    (new_array, "a new array is made here"),
    (plain_helper, "plain_worth is a plain function; it should be decorated with @kernel"),
    (named_as_in_vllm, "what vLLM calls long_prefill_token_threshold is chunk_tokens here"),
    (named_as_before, "there is no field token_budget; token_budget is now called max_num_batched_tokens"),
    (old_arguments, "3 argument types given, but function takes 9 arguments"),
])  # fmt: skip
def test_what_cannot_be_compiled_is_one_line(function, words):
    policy = Policy("mine", "scheduler", "", "", function, parameters=P)
    with pytest.raises(PolicyError) as error:
        Simulation(scene(requests(prompt_tokens=[2, 3]), policy))
    said = str(error.value)
    assert said.startswith("scheduler mine cannot be compiled: test_compile_errors.py, line ") and "\n" not in said
    assert words in said and len(said) < 400
    line = int(re.search(r"line ([0-9]+)", said)[1])  # type: ignore[index]
    code = (prompt_of.py_func if function is misspelt_in_helper else function.written).__code__
    assert code.co_firstlineno <= line <= max(at for *_, at in code.co_lines() if at)


@router
def misspelt_router(context, request, route):
    route.engine = context.konwn.snapshots[0].index


def test_a_router_that_cannot_be_compiled():
    policy = Policy("mine", "router", "", "", misspelt_router)
    with pytest.raises(
        PolicyError, match=r"router mine cannot be compiled: .* no konwn in RouterContext; there are now_s"
    ):
        Simulation(scene(requests(prompt_tokens=[2, 3]), engines=2, router=policy))
