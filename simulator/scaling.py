"""Asking the scaler: which tier each engine is in, and which is closed to new requests."""

from servegym.simulator.compilation import kernel
from servegym.simulator.incidents import close, move
from servegym.simulator.lines import inbox_of
from servegym.simulator.routing import catch_up
from servegym.simulator.signatures import scaler


@scaler
def stay(now_s, requests, known, state, parameters, estimates, moves):
    """Engines stay in their tiers."""


@kernel
def ask_scaler(run, books, now_s):
    """Have the scaler write books.moves."""
    for e in range(run.engines.shape[0]):
        books.moves[e].tier, books.moves[e].closed = run.engines[e].tier, run.engines[e].closed
    catch_up(run, books, now_s)
    books.scaler(
        now_s, run.requests, books.known, books.scaler_state, books.scaler_parameters, books.estimates, books.moves
    )


@kernel
def are_legal(books):
    """Whether every tier that the scaler names exists."""
    tiers = inbox_of(books.known.tiers) - 1
    legal = True
    for e in range(books.moves.shape[0]):
        legal = legal and -1 <= books.moves[e].tier < tiers
    return legal


@kernel
def make_moves(run, books, now_s):
    """Do what the scaler has decided, by engine index."""
    clock = run.clock[0]
    for e in range(run.engines.shape[0]):
        move(run, books, e, books.moves[e].tier, now_s)
        close(run, books, e, int(books.moves[e].closed != 0))
    clock.news, clock.asking = 1, 0
    clock.next_check_s += clock.interval_s
