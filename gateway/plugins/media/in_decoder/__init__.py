"""The jobs of this plug-in in a decoder's process; the serving process names them, and never imports them."""
