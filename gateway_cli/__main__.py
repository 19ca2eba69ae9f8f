"""`python -m gateway_cli` is the `gateway` command."""

from gateway_cli.main import main

main()
