"""mbarrier sequences by one thread, by a warp and between the CTAs of a cluster.

The state word and the tokens are opaque, so only what programs can see is compared: waits and pending counts.
"""

from __future__ import annotations

from silicon.programs.code import Code, Program


class Barrier:
    """Writes mbarrier instructions on one barrier and puts what each reveals."""

    def __init__(self, count: int | str, *, one_thread: bool = True):
        self.code = Code()
        self.code.shared("barrier", 8, 8)
        self.code("mov.u32 %r0, barrier;")
        if one_thread:
            self.code("setp.ne.u32 %p0, %tx, 0; @%p0 bra finished;")
        self.code(f"mbarrier.init.shared.b64 [%r0], {count};")
        self.tokens = 0

    def arrive(self, form: str, operands: str = "") -> int:
        """An arrival that returns a token, whose pending count is put; returns the token's number."""
        self.tokens += 1
        self.code(f"""
            mbarrier.{form}.b64 %d{self.tokens}, [%r0]{operands};
            mbarrier.pending_count.b64 %r1, %d{self.tokens};
        """)
        self.code.put("%r1")
        return self.tokens

    def do(self, form: str, operands: str) -> None:
        """An operation without a result."""
        self.code(f"mbarrier.{form}.b64 [%r0], {operands};")

    def parity(self) -> None:
        """Put whether the phases of parity 0 and 1 count as completed."""
        for parity in (0, 1):
            self.code(f"mbarrier.test_wait.parity.shared.b64 %p1, [%r0], {parity};")
            self.code.put("%p1")

    def token(self, number: int) -> None:
        """Put whether the phase of a token has completed."""
        self.code(f"mbarrier.test_wait.shared.b64 %p1, [%r0], %d{number};")
        self.code.put("%p1")

    def build(self, name: str, covers: str, **options: object) -> Program:
        """The Program; threads other than the first leave their results zero."""
        lines = self.code.lines
        clear = "mov.b64 %result, 0; " + " ".join(
            f"st.global.b64 [%slot+{8 * i}], %result;" for i in range(self.code.results)
        )
        self.code.lines = [clear, *lines, "finished:"]
        return self.code.build(f"mbarrier.{name}", covers, minimum=90, **options)


def _arrivals() -> Program:
    b = Barrier(3)
    b.parity()
    for _ in range(3):  # three whole phases
        first = b.arrive("arrive.shared")
        b.token(first)
        b.arrive("arrive.shared::cta")
        b.parity()
        last = b.arrive("arrive.release.cta.shared::cta")
        b.token(first)
        b.token(last)
        b.parity()
    return b.build("arrivals", "three phases of three arrivals: tokens, pending counts, parities")


def _counts() -> Program:
    b = Barrier(7)
    first = b.arrive("arrive.noComplete.shared", ", 3")
    b.token(first)
    b.arrive("arrive.shared::cta", ", 2")
    b.parity()
    b.arrive("arrive.shared::cta", ", 2")
    b.token(first)
    b.parity()
    second = b.arrive("arrive.noComplete.release.cta.shared::cta", ", 6")
    b.token(second)
    b.arrive("arrive.shared")
    b.token(second)
    b.parity()
    return b.build("counts", "arrivals with counts and .noComplete")


def _drops() -> Program:
    b = Barrier(4)
    b.arrive("arrive_drop.shared")
    b.parity()
    b.arrive("arrive_drop.noComplete.shared", ", 1")
    b.arrive("arrive.shared")
    b.parity()
    b.arrive("arrive.shared")
    b.parity()
    b.arrive("arrive.shared")  # from here on two arrivals make a phase
    b.parity()
    token = b.arrive("arrive_drop.shared")
    b.token(token)
    b.parity()
    b.arrive("arrive.shared")  # and now one
    b.parity()
    return b.build("drops", "arrive_drop: fewer arrivals are expected from the next phase on")


def _transactions() -> Program:
    b = Barrier(1)
    b.do("expect_tx.relaxed.cta.shared::cta", "96")
    token = b.arrive("arrive.shared")
    b.token(token)
    b.do("complete_tx.relaxed.cta.shared::cta", "64")
    b.token(token)
    b.parity()
    b.do("complete_tx.relaxed.cta.shared::cta", "32")
    b.token(token)
    b.parity()
    b.do("complete_tx.relaxed.cta.shared::cta", "16")  # before anybody expects it
    b.parity()
    token = b.arrive("arrive.expect_tx.shared", ", 16")
    b.token(token)
    b.parity()
    b.arrive("arrive.expect_tx.release.cta.shared::cta", ", 1048575")
    b.do("complete_tx.relaxed.cta.shared::cta", "1048574")
    b.parity()
    b.do("complete_tx.relaxed.cta.shared::cta", "1")
    b.parity()
    token = b.arrive("arrive.expect_tx.shared::cta", ", 8")
    b.token(token)
    b.do("complete_tx.relaxed.cta.shared::cta", "8")
    b.token(token)
    b.parity()
    return b.build(
        "transactions", "expect_tx and complete_tx: a phase waits for both counts; completion may come first"
    )


def _drop_with_transactions() -> Program:
    b = Barrier(2)
    b.arrive("arrive_drop.expect_tx.release.cta.shared::cta", ", 8")
    b.arrive("arrive.shared")
    b.parity()
    b.do("complete_tx.relaxed.cta.shared::cta", "8")
    b.parity()
    b.arrive("arrive.shared")
    b.parity()
    return b.build("drop_transactions", "arrive_drop.expect_tx")


def _reinitialised() -> Program:
    b = Barrier(2)
    b.arrive("arrive.shared")
    b.arrive("arrive.shared")
    b.arrive("arrive.shared")
    b.parity()
    b.code("mbarrier.inval.shared.b64 [%r0]; mbarrier.init.shared.b64 [%r0], 1;")
    b.parity()
    b.arrive("arrive.shared")
    b.parity()
    return b.build("reinitialised", "inval and a second init start again at phase 0")


def _try_wait() -> Program:
    b = Barrier(1)
    b.code("mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 1;")
    b.code.put("%p1")
    b.code("mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0, 20;")
    b.code.put("%p1")
    token = b.arrive("arrive.shared")
    b.code(f"mbarrier.try_wait.shared.b64 %p1, [%r0], %d{token};")
    b.code.put("%p1")
    b.code("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r0], 0;")
    b.code.put("%p1")
    return b.build("try_wait", "try_wait succeeds for completed phases and gives up on others")


def _large_counts() -> Program:
    b = Barrier(1048575)
    token = b.arrive("arrive.noComplete.shared", ", 1048573")
    b.token(token)
    b.arrive("arrive.shared")
    b.parity()
    b.arrive("arrive.shared")
    b.token(token)
    b.parity()
    return b.build("large_counts", "the largest expected count")


def _warp_arrives() -> Program:
    """Pending counts are left out: the GPU counts the arrivals of a warp at once, and all its tokens show the same count."""
    code = Code()
    code.shared("barrier", 8, 8)
    code("mov.u32 %r0, barrier; setp.eq.u32 %p0, %tx, 0; @%p0 mbarrier.init.shared.b64 [%r0], 64; bar.sync 0;")
    code("mbarrier.test_wait.parity.shared.b64 %p2, [%r0], 0;")
    code.put("%p2")
    code("bar.sync 0; mbarrier.arrive.shared.b64 %d1, [%r0];")
    code("again: mbarrier.test_wait.shared.b64 %p1, [%r0], %d1; @!%p1 bra again;")
    code.put("%p1")
    code("mbarrier.test_wait.parity.shared.b64 %p2, [%r0], 0; mbarrier.test_wait.parity.shared.b64 %p3, [%r0], 1;")
    code.put("%p2")
    code.put("%p3")
    return code.build("mbarrier.warps", "64 threads arrive at once", block=64, minimum=80)


def _ping_pong() -> Program:
    """Two warps hand a shared word back and forth, with phases by parity, as pipelines do."""
    code = Code()
    code.shared("full", 8, 8)
    code.shared("empty", 8, 8)
    code.shared("word", 16)
    code("mov.u32 %r0, full; mov.u32 %r1, empty; mov.u32 %r2, word; mov.u32 %r10, 0; mov.u32 %r11, 0;")
    code("""
        setp.eq.u32 %p0, %tx, 0; @%p0 mbarrier.init.shared.b64 [%r0], 32;
        @%p0 mbarrier.init.shared.b64 [%r1], 32; bar.sync 0;
    """)
    code("setp.eq.u32 %p1, %warp, 0; @!%p1 bra consumer;")
    code("producer: xor.b32 %r12, %r11, 1;")
    code("wait_empty: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], %r12; @!%p2 bra wait_empty;")
    code("""
        mad.lo.u32 %r13, %r10, 17, 3; setp.eq.u32 %p3, %lane, 0; @%p3 st.shared.u32 [%r2], %r13;
        mbarrier.arrive.shared.b64 _, [%r0];
    """)
    code("xor.b32 %r11, %r11, 1; add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 9; @%p4 bra producer;")
    code("mov.u32 %r20, 0; bra.uni done;")
    code("consumer: mov.u32 %r20, 0;")
    code("wait_full: mbarrier.try_wait.parity.shared.b64 %p2, [%r0], %r11; @!%p2 bra wait_full;")
    code("ld.shared.u32 %r14, [%r2]; mad.lo.u32 %r20, %r20, 31, %r14; mbarrier.arrive.shared.b64 _, [%r1];")
    code("xor.b32 %r11, %r11, 1; add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 9; @%p4 bra wait_full;")
    code("done:")
    code.put("%r20")
    return code.build(
        "mbarrier.ping_pong",
        "a producer and a consumer warp over nine phases of a full and an empty barrier",
        block=64,
        minimum=90,
    )


def _remote() -> Program:
    """Each CTA of a pair arrives at the other's barrier."""
    code = Code()
    code.shared("barrier", 8, 8)
    code("""
        mov.u32 %r0, barrier; setp.eq.u32 %p0, %tx, 0; @%p0 mbarrier.init.shared.b64 [%r0], 32;
        @%p0 fence.mbarrier_init.release.cluster;
    """)
    code("barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r1, %cluster_ctarank; xor.b32 %r1, %r1, 1;")
    code("mapa.shared::cluster.u32 %r2, %r0, %r1; mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r0], 1;")
    code.put("%p1")
    code("barrier.cluster.arrive; barrier.cluster.wait; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];")
    code("again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r0], 0; @!%p2 bra again;")
    code.put("%p2")
    code("setp.eq.u32 %p3, %tx, 5; @%p3 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r2], 4;")
    code("""
        @%p3 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r2], 4; barrier.cluster.arrive;
        barrier.cluster.wait;
    """)
    code("""
        mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r0], 1; bar.warp.sync 0xFFFFFFFF;
        @!%p3 mbarrier.arrive.shared::cta.b64 _, [%r0];
    """)
    code.put("%p4")
    code("""
        last: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r0], 1; @!%p5 bra last; barrier.cluster.arrive;
        barrier.cluster.wait;
    """)
    code.put("%p5")
    return code.build(
        "mbarrier.remote", "arrivals at the barrier of the other CTA of a cluster", grid=2, cluster=2, minimum=90
    )


def programs() -> list[Program]:
    """All kernels of this file."""
    return [
        _arrivals(),
        _counts(),
        _drops(),
        _transactions(),
        _drop_with_transactions(),
        _reinitialised(),
        _try_wait(),
        _large_counts(),
        _warp_arrives(),
        _ping_pong(),
        _remote(),
    ]
