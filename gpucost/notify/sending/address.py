"""Which addresses may be connected to. Pure.

Somebody who can change a URL in the settings, or a name in DNS, must not make the service talk to what only
it can reach: the metadata service of its cloud, its own loopback, the cluster.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# Where clouds serve credentials to whoever asks. Most are link-local and refused as such; these are not:
# Azure's wire server, Alibaba Cloud, AWS and Google Cloud over IPv6.
METADATA = frozenset(
    map(ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"))
)
_NAT64 = ip_network("64:ff9b::/96")  # RFC 6052


def trouble_with(address: str, *, allow_private: bool) -> str:
    """Why ``address`` (numbers of IPv4 or IPv6) must not be connected to; empty if it may."""
    try:
        found = _reached(ip_address(address.partition("%")[0]))
    except ValueError:
        return "is no address"
    if found in METADATA or found.is_link_local:
        return "is an address of a cloud's metadata service or link-local, which is never allowed"
    if found.is_unspecified or found.is_multicast:
        return "is an address of no single machine, which is never allowed"
    if not found.is_global and not allow_private:
        kind = "loopback" if found.is_loopback else "a private or reserved address"
        return f"is {kind}, and the channel's allow_private is not set"
    return ""


def _reached(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, or else itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
