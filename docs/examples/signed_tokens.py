"""Signed tokens `NAME.EXPIRES.SIGNATURE`, besides API keys. Entry point: tokens = "signed_tokens:SignedTokens"."""

import hashlib
import hmac
import time

from pydantic import SecretStr

from gateway.errors import Unauthorized
from gateway.hooks import Authenticator, Identity, Plugin
from gateway.settings import Section


class TokenSettings(Section):
    """Signed tokens."""

    token_secret: SecretStr | None = None
    """Secret with which tokens are signed; API keys stay valid."""


class SignedTokens(Plugin):
    """Adds the check of tokens, if a secret is set."""

    settings = TokenSettings

    def __init__(self, settings):
        self.secret = TokenSettings.of(settings).token_secret

    def authenticators(self):
        return (Tokens(self.secret.get_secret_value().encode()),) if self.secret else ()


class Tokens(Authenticator):
    """Accepts a token until it expires."""

    def __init__(self, secret):
        self.secret = secret

    def identify(self, key):
        signed, _, signature = key.rpartition(b".")
        right = hmac.new(self.secret, signed, hashlib.sha256).hexdigest()
        name, _, expires = signed.partition(b".")
        if not hmac.compare_digest(right.encode(), signature) or not expires.isdigit():
            return None  # not a token: another check, such as the file of API keys, may know it
        if int(expires) < time.time():  # noqa: TID251 - a date
            raise Unauthorized("The token has expired.")
        return Identity(name.decode("latin-1"))
