"""A finding as a part of a page, for tests of what it says."""

from treespec.experiments.report.html import environment
from treespec.experiments.report.table import Finding


def section_html(finding: Finding | None) -> str:
    """The section of a finding; nothing but white space without one."""
    return str(environment().get_template("table.html").module.section(finding)).strip()
