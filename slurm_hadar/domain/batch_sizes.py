"""The global batches that a range such as ``64:512`` stands for."""

_MOST = 12


def doublings(low: int, high: int) -> tuple[int, ...]:
    """``low``, twice, four times ... as much, and ``high``; rising, at most 12, the smallest."""
    sizes = [low * 2**step for step in range(_MOST) if low * 2**step <= high]
    return (*sizes, high)[:_MOST] if sizes and sizes[-1] < high else tuple(sizes)
