"""As many colours as there are jobs, distinct on light and on dark paper."""

import math


def colour(index: int) -> str:
    """The index-th of as many colours as wanted, neighbours far apart, all of like lightness."""
    hue = math.radians((index * 137.508 + 250) % 360)
    light = (0.72, 0.64, 0.79)[index // 8 % 3]
    return _oklch(light, 0.125, hue)


def _oklch(light: float, chroma: float, hue: float) -> str:
    """sRGB of an OKLCH colour (Ottosson, "A perceptual color space", 2020; recalled)."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(value)):02x}" for value in linear)


def _gamma(value: float) -> float:
    value = min(max(value, 0.0), 1.0)
    return 12.92 * value if value <= 0.0031308 else 1.055 * float(value ** (1 / 2.4)) - 0.055
