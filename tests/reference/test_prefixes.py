"""Prefix stores, worked by hand (set in scenes.py)."""

from .engines import Engine, HostMemory
from .requests import INF, Request
from .scenes import SECONDS, row
from .schedulers.sarathi import SarathiFcfs
from .simulator import Log, Pool, simulate_cluster
from .stores import PrefixStore, Store
from .test_incidents import pool_of


def test_a_set_forgets_what_was_used_least_recently():
    store = Store(PrefixStore(16 * 4 * 2 + 60, 0.0), chunk_tokens=4)  # 2 sets and a bit
    store.put(list(range(32)))
    assert all(store.has(chunk) for chunk in range(32))
    assert store.use_leading([0, 2, 33, 4]) == 8  # 33 is not there
    store.put([32, 34, 36])  # even ones: 4, 6 and 8 go, since 0 and 2 were used after them
    assert [chunk for chunk in range(0, 32, 2) if not store.has(chunk)] == [4, 6, 8]
    store.put([33, 5])  # of the odd ones 1 goes; 5 was there
    store.put([35])
    assert [chunk for chunk in range(1, 32, 2) if not store.has(chunk)] == [1, 3] and store.has(5)


def test_a_small_store_has_one_set():
    store = Store(PrefixStore(1, 0.0), chunk_tokens=4)
    store.put(list(range(17)))
    assert [chunk for chunk in range(17) if not store.has(chunk)] == [0]


def served(rows: list[dict], chunk_tokens: int = 4, host: HostMemory | None = None, **more) -> Log:
    pool = Pool(1, 1, 1000, 0.0, SarathiFcfs(512), SECONDS, SECONDS, prefix_store=PrefixStore(640, 0.5), host=host)
    return simulate_cluster(rows, [pool], chunk_tokens=chunk_tokens, **more)


def test_what_was_prefilled_is_loaded():
    # r0: 0 to 10. r1 shares 2 chunks of 4 tokens: 4 s of loading, then 1 + 2. r2 came before r0's prefill was done. At
    # 17 r3 has a whole prompt in the store, but for its last token: 3.5 + 1 + 1 s.
    rows = [row(9, 1, chunks=[0, 1]), row(5, 1, 9.0, chunks=[0]), row(10, 1, 16.0, chunks=[0, 1]),
            row(8, 1, 30.0, chunks=[0, 1])]  # fmt: skip
    log = served(rows)
    assert [(i.start_s, i.end_s, i.batch, i.loaded) for i in log.iterations] == [
        (0, 10, [(0, 9)], []),
        (10, 16, [(1, 5)], []),
        (16, 23, [(2, 2)], [(2, 8)]),
        (30, 35.5, [(3, 1)], [(3, 7)]),
    ]
    assert log.cached_tokens == [0, 0, 8, 7]


def test_the_store_is_not_the_host_memory():
    # 3 host blocks are free whatever is borrowed.
    log = served([row(9, 1, chunks=[0, 1]), row(9, 1, 20.0, chunks=[0, 1])], host=HostMemory(3, 0.5, 0.0))
    assert [i.free_host_blocks for i in log.iterations] == [3, 3] and log.iterations[1].moving_s == 4
    engine = Engine(0, 1, 10, 0, host=HostMemory(3, 0.5, 0.0), store=Store(PrefixStore(640, 0.5), 4))
    borrower, keeper = (Request(index=i, **row(9, 1)) for i in range(2))
    engine.queue = [borrower, keeper]
    borrower.kept, borrower.borrowed, keeper.kept = 8, True, 2
    assert engine.free_host_blocks == 1


def test_a_router_thinks_it_is_there_when_it_has_sent_it():
    pools = [pool_of(engines=2, prefix_store=PrefixStore(640, 0.0))]
    log = simulate_cluster([row(9, 1, chunks=[0, 1]), row(9, 1, chunks=[0, 1])], pools, chunk_tokens=4, until_s=INF)
    assert log.cached_tokens == [0, 0]  # on different engines


def test_a_failed_engine_has_lost_its_store():
    from .incidents import Incident

    rows = [row(9, 1, chunks=[0, 1]), row(9, 1, 20.0, chunks=[0, 1])]
    incidents = [Incident(12.0, 0, "fail"), Incident(13.0, 0, "return")]
    assert served(rows, incidents=incidents).cached_tokens == [0, 0]
    assert served(rows).cached_tokens == [0, 8]
