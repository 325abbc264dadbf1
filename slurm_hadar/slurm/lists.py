"""Lists as Slurm writes them: parts between commas, of which some stand in brackets."""


def outside(text: str, brackets: str) -> list[str]:
    """Split at the commas that are in no brackets; ``brackets``: ``[]`` or ``()``.

    A comma is inside when the next bracket behind it is a closing one. One pass: what a user may
    make long must not cost its square.
    """
    opening, closing = brackets[0], brackets[1]
    if closing not in text:
        return text.split(",")
    found: list[str] = []
    end, inside = len(text), False
    for at in range(len(text) - 1, -1, -1):
        letter = text[at]
        if letter == closing:
            inside = True
        elif letter == opening:
            inside = False
        elif letter == "," and not inside:
            found.append(text[at + 1 : end])
            end = at
    found.append(text[:end])
    return found[::-1]
