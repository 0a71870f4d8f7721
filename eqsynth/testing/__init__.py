"""Checks that other test suites can use too."""
