"""Verdict, report page and files of an audit."""
