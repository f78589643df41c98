"""FastServe; cases worked by hand, set in scenes.py."""

from .engines import HostMemory
from .scenes import formed, row, served, state, steps
from .schedulers.fastserve import FastserveMlfq

ROOMY = HostMemory(blocks=100, load_s_per_token=0.5, save_s_per_token=0.25)


def test_skip_join():
    # Quanta 3, 6, 12, ...: 1 + 2 s start at level 0, 1 + 3 s at level 1, 1 + 6 s at level 2.
    assert formed(FastserveMlfq(quantum_s=3), state(6), state(3), state(2))[0] == [(2, 2), (1, 3), (0, 6)]
    # Within a level by the time of entering it, which is the arrival.
    assert formed(FastserveMlfq(quantum_s=3), state(2, arrival_s=0.0), state(2, arrival_s=-1.0))[0] == [(1, 2), (0, 2)]
    assert formed(FastserveMlfq(quantum_s=3, batch_size=1), state(6), state(3), state(2))[0] == [(2, 2)]


def test_demotion():
    # One at a time. r0 uses its quantum of 3 up from 0 to 3 and enters level 1 at 3; r1 (1 + 3 s) is there since 1.
    # Then r0 is alone.
    log = served([row(2, 3), row(3, 1, 1.0)], FastserveMlfq(quantum_s=3, batch_size=1))
    assert [(i.start_s, i.batch) for i in log.iterations] == [
        (0, [(0, 2)]),
        (3, [(1, 3)]),
        (7, [(0, 1)]),
        (9, [(0, 1)]),
    ]


def test_promotion():
    # As above, but r1 has more to do. At 7 r0 has waited 4 s. Without promotion r1, in level 1 since 1, goes on
    # until its 6 s are used, at 9.
    def order(promote_after_s: float) -> list[int]:
        scheduler = FastserveMlfq(quantum_s=3, batch_size=1, promote_after_s=promote_after_s)
        return [i.batch[0][0] for i in served([row(2, 2), row(3, 3, 1.0)], scheduler).iterations]

    assert order(promote_after_s=4) == [0, 1, 0, 1, 1]
    assert order(promote_after_s=4.5) == [0, 1, 1, 0, 1]


def test_preemption_with_host_memory():
    # Quanta 2, 4, 8: r0 (1 + 3 s) starts at level 1, is at level 2 at 4 and holds 3 of 4 blocks; r1 (1 + 2 s) is at
    # level 1 and needs 2. r0 makes room (3 tokens saved in 0.75 s), and is loaded (1.5 s) when r1 has ended.
    rows = [row(3, 2), row(2, 1, 1.0)]
    log = served(rows, FastserveMlfq(quantum_s=2), blocks=4, host=ROOMY)
    assert steps(log) == [
        (0, 4, [(0, 3)], [], 1),
        (4, 7.75, [(1, 2)], [0], 2),
        (7.75, 11.25, [(0, 1)], [], 0),
    ]
    # Without, r1 waits.
    log = served(rows, FastserveMlfq(quantum_s=2), blocks=4)
    assert [i.batch for i in log.iterations] == [[(0, 3)], [(0, 1)], [(1, 2)]]
