"""`python -m gateway` is the `gateway` command."""

from gateway.command_line.main import main

main()
