"""Tests of the page. The browser is closed after the last of them: its event loop would stop asynchronous tests."""
