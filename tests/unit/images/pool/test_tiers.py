"""A tier against a model of it: budgets are kept, images in use stay, the least recently used one goes first."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpsguard.images.pool import tiers
from mpsguard.images.pool.tiers import TierState

BUDGET, MOST = 10, 4
KEYS = "abcdefgh"


class TierMachine(RuleBasedStateMachine):
    """The model is a list of what was used, in order, and counts of uses."""

    def __init__(self) -> None:
        super().__init__()
        self.state = TierState(BUDGET, most=MOST)
        self.order: list[str] = []
        self.sizes: dict[str, int] = {}
        self.uses: dict[str, int] = {}
        self.loading: set[str] = set()

    def touch(self, key: str) -> None:
        if key in self.order:
            self.order.remove(key)
        self.order.append(key)

    @rule(key=st.sampled_from(KEYS), size=st.integers(0, BUDGET + 2))
    def request(self, key: str, size: int) -> None:
        before = self.state
        decision = tiers.request(before, key, size)
        if key in self.sizes:
            assert (decision.load, decision.evicted, decision.refusal) == (False, (), None)
            self.uses[key] += 1
        else:
            idle = [k for k in self.order if not self.uses[k] and k not in self.loading]
            wanted = 0
            while wanted <= len(idle):
                left = [k for k in self.order if k not in idle[:wanted]]
                if len(left) < MOST and sum(self.sizes[k] for k in left) + size <= BUDGET:
                    break
                wanted += 1
            if wanted > len(idle) or size > BUDGET:
                assert decision.refusal is not None
                assert (decision.state, decision.evicted, decision.load) == (before, (), False)
                return
            # No more than needed, and these in the order in which they were used.
            assert (decision.evicted, decision.load, decision.refusal) == (tuple(idle[:wanted]), True, None)
            for gone in decision.evicted:
                self.order.remove(gone)
                del self.sizes[gone], self.uses[gone]
            self.sizes[key], self.uses[key] = size, 1
            self.loading.add(key)
        self.state = decision.state
        self.touch(key)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), good=st.booleans())
    def end_of_loading(self, data: st.DataObject, good: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.loading)))
        self.loading.discard(key)
        if good:
            self.state = tiers.arrived(self.state, key)
            return
        self.state = tiers.failed(self.state, key)
        self.order.remove(key)
        del self.sizes[key], self.uses[key]

    @precondition(lambda self: any(self.uses.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(k for k, uses in self.uses.items() if uses)))
        self.uses[key] -= 1
        self.state = tiers.release(self.state, key)
        self.touch(key)

    @invariant()
    def agrees(self) -> None:
        assert self.state.taken <= BUDGET
        assert [image.key for image in self.state.images] == self.order
        assert {image.key: image.uses for image in self.state.images} == self.uses
        assert {image.key for image in self.state.images if not image.whole} == self.loading


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
