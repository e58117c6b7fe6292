"""Self-contained HTML pages of what the instruments measure."""

from lln.report.page import build_page
from lln.report.survey import Survey, survey

__all__ = ["Survey", "build_page", "survey"]
