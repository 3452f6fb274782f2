"""Which addresses may be connected to. Pure.

A person who can change a URL in the settings, or a name in DNS, must not make the service connect to what
only it can reach: the metadata service of its cloud, its own loopback, the cluster.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import parse_qsl

_Address = IPv4Address | IPv6Address

# Where clouds serve credentials to every client. Most are link-local and refused as such; these are not:
# Azure's wire server, Alibaba Cloud, Oracle Cloud's first ones, AWS and Google Cloud over IPv6.
METADATA = frozenset(
    map(
        ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    )
)
# IPv6 networks whose addresses end in the IPv4 address that they stand for: mapped ones (RFC 4291) and NAT64
# (RFC 6052), which are as public as that is; IPv4-compatible ones (RFC 4291) and SIIT (RFC 2765), which are
# not.
_STANDS_FOR_IPV4 = tuple(map(ip_network, ("::ffff:0:0/96", "64:ff9b::/96")))
_ENDS_IN_IPV4 = (*_STANDS_FOR_IPV4, *map(ip_network, ("::/96", "::ffff:0:0:0/96")))
_OWN_NAT64 = ip_network("64:ff9b:1::/48")  # RFC 8215
_ISATAP = (0x00005EFE, 0x02005EFE)  # RFC 5214: the 32 bits before the IPv4 address
# Not public, though the tables of some versions of Python say so: 6to4 and its relays, site-local addresses
# (RFC 3879), segment routing, documentation, and what IANA has reserved for protocols.
_NOT_PUBLIC = (
    _OWN_NAT64,
    *map(ip_network, ("::/96", "::ffff:0:0:0/96", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10")),
    *map(ip_network, ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24")),
)

LOCAL_SERVICES = frozenset(
    ("blink1", "dbus", "file", "glib", "gnome", "kde", "kmsg", "macosx", "qt", "stdout", "syslog", "windows")
)
"""Services of apprise on this machine, not on the network."""
# Parameters by which its services read files. For some services ``template`` means something else.
_OF_FILES = ("attach", "keyfile", "subfile", "template")


def trouble_with_service(url: str) -> str:
    """Why apprise must not be given ``url``, as far as the URL shows it; empty if it may. Of the URL, only
    its scheme and the name of a parameter are repeated."""
    scheme, _, rest = url.strip().partition("://")
    if scheme.lower() in LOCAL_SERVICES:
        return f"{scheme.lower()}:// is no address in the network"
    for name, value in parse_qsl(rest.partition("?")[2]):
        key = name.lower()
        if key in _OF_FILES and (value[:1] in ("~", ".") or "/" in value or "\\" in value):
            return f"{key}= reads a file, which is not allowed"
        if key == "redirect" and value.lower() not in ("no", "false", "0", "off"):
            return "redirect= follows redirects, which is not allowed"
    return ""


def trouble_with(address: str, *, allow_private: bool) -> str:
    """Why ``address`` (numbers of IPv4 or IPv6) must not be connected to; empty if it may."""
    try:
        given = ip_address(address.partition("%")[0])
    except ValueError:
        return "is no address"
    reached = (given, *_within(given))
    if any(each in METADATA or each.is_link_local for each in (*reached, *_perhaps_within(given))):
        return "is an address of a cloud's metadata service or link-local, which is never allowed"
    if any(each.is_unspecified or each.is_multicast for each in reached):
        return "is an address of no single machine, which is never allowed"
    if not allow_private and not all(map(_is_public, reached)):
        kind = "loopback" if any(each.is_loopback for each in reached) else "a private or reserved address"
        return f"is {kind}, and the channel's allow_private is not set"
    return ""


def _is_public(address: _Address) -> bool:
    if any(address in network for network in _STANDS_FOR_IPV4):
        return True  # if that is
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def _within(address: _Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, IPv4Address) or address.is_unspecified or address.is_loopback:
        return ()
    is_isatap = int(address) >> 32 & 0xFFFFFFFF in _ISATAP
    if is_isatap or any(address in network for network in _ENDS_IN_IPV4):
        return (IPv4Address(address.packed[12:]),)
    if address.teredo is not None:
        return address.teredo
    return () if address.sixtofour is None else (address.sixtofour,)


def _perhaps_within(address: _Address) -> tuple[IPv4Address, ...]:
    """Where the IPv4 address may stand in an address of a private NAT64: RFC 6052, section 2.2."""
    if address not in _OWN_NAT64:
        return ()
    split = address.packed[:8] + address.packed[9:]
    return tuple(map(IPv4Address, (split[6:10], split[7:11], split[8:12], address.packed[12:])))
