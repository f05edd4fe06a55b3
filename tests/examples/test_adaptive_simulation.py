"""The simulation of limits that tune themselves, and its figures on the page about them."""

from pathlib import Path

import pytest

from examples.howto.adaptive_simulation import PROVIDERS, compare

FIGURES = Path(__file__).parents[2] / "examples" / "howto" / "adaptive-figures.txt"


def shown(provider: str) -> dict[str, tuple[int, int]]:
    """The figures of a provider on the page: answers and refusals by limit."""
    found = {}
    for line in FIGURES.read_text("utf-8").splitlines():
        name, *words, answered, _, refused, _ = line.split()
        if name == provider:
            found[" ".join(words)] = int(answered), int(refused)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_learned_limit_comes_close_to_the_best_in_hindsight_with_few_refusals(
    provider: str,
) -> None:
    found = compare(provider)
    none, best, *learned = found.values()
    assert len(learned) == 2
    for answered, refused in learned:
        assert answered >= 0.9 * best[0]
        assert refused <= 0.1 * none[1]
    page = shown(provider)
    assert page.keys() == found.keys()
    for limit, (answered, refused) in found.items():
        assert page[limit][0] == pytest.approx(answered, rel=0.05)
        assert page[limit][1] == pytest.approx(refused, rel=0.2, abs=20)
