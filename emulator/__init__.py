"""Hosts, links, switches and fabrics around the TTPoE machine, RoCE beside it, and experiments on them."""
