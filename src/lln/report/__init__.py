"""Self-contained HTML pages of what the instruments measure and of how training went."""

from lln.report.run_page import build_run_page
from lln.report.runs import Run, find_runs, read_run
from lln.report.survey import Survey, survey
from lln.report.survey_page import build_survey_page

__all__ = [
    "Run",
    "Survey",
    "build_run_page",
    "build_survey_page",
    "find_runs",
    "read_run",
    "survey",
]
