"""numpy asks `lscpu` and matplotlib `fc-list` when first imported: before the tier forbids processes."""

import matplotlib.font_manager
import scipy.stats

_IMPORTED = (matplotlib, scipy)
