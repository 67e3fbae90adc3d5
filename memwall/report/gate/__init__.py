"""A gate's result for forges and dashboards: a comment of Markdown, annotations, code quality, JUnit, SARIF.

``wording`` has the numbers and sentences that all share.
"""
