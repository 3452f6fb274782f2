"""Settings of notifications: what is wrong stops the start, names the place, and shows no secret."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import ConfigError, InputError
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.notify.channels import ChannelService
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import NoticeKind, NoticeRank
from gpucost.notify.routes.rules import NotificationRoute, QuietHours, RouteEscalation, RoutingRules
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import Settings
from gpucost.service.settings.notifications import NotifySettings, check_teams

SECRET = "hunter2hunter2"
HOOK = f"https://hooks.slack.com/services/{SECRET}"
NLP = f"{{name: nlp, service: slack, url: '{HOOK}'}}"
ALL = f"{{name: all, service: teams, url: '{HOOK}', sees_all: true}}"


def load(folder: Path, text: str) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def notify(folder: Path, channels: str, routes: str, more: str = "") -> NotifySettings:
    return load(folder, f"notify: {{channels: [{channels}], routes: [{routes}]{more}}}").notify


def test_nothing_is_posted_by_default() -> None:
    settings = NotifySettings()
    assert settings.rules() == RoutingRules(update_every_ms=300_000)
    assert settings.channel_list() == ()
    assert settings.links == MessageLinks()
    assert (settings.weekly.weekday, settings.weekly.hour, settings.weekly.zone) == ("monday", 9, "UTC")


def test_all_of_it_reaches_the_routes(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n", encoding="utf-8")
    (tmp_path / "token").write_text(f"{SECRET}\n", encoding="utf-8")
    settings = load(
        tmp_path,
        f"""
notify:
  base_url: https://gpucost.example.com/
  dashboards_url: https://grafana.example.com
  channels:
    - {NLP}
    - name: bot
      service: slack
      token_file: {tmp_path / "token"}
      room: C1
      mention: "<!subteam^S1>"
      sees_all: true
    - {{name: mail, service: email, recipients: [a@example.com, b@example.com]}}
    - {{name: other, service: apprise, url: "discord://{SECRET}/x"}}
    - {{name: chat, service: mattermost, url: "http://chat.svc:8065", allow_http: true, allow_private: true}}
  mail:
    host: mx.example.com
    sender: gpucost@example.com
    username: u
    password_file: {tmp_path / "password"}
  cool_down: 12h
  update_every: 1m
  routes:
    - channels: [nlp, mail]
      teams: [nlp]
      kinds: [finding, alert]
      min_severity: medium
      clusters: ["prod-*"]
      names: [idle_allocation]
      stop: true
      quiet: [{{start: "22:00", end: "06:30", zone: Europe/Berlin, days: [friday]}}]
      cool_down: 1h
      floor: 12.5
      escalate: {{channels: [bot], after: 2h, min_severity: critical}}
    - {{channels: [bot], platform: true}}
""",
    ).notify
    hook, bot, mail, other, chat = settings.channel_list()
    assert hook.url is not None
    assert hook.url.get_secret_value() == HOOK
    assert bot.token is not None
    assert (bot.token.get_secret_value(), bot.room, bot.mention) == (SECRET, "C1", "<!subteam^S1>")
    assert bot.url is not None
    assert bot.url.get_secret_value() == "https://slack.com/api"
    assert (bot.sees_all, bot.updates, hook.updates) == (True, True, False)
    assert mail.recipients == ("a@example.com", "b@example.com")
    assert mail.mailbox is not None
    assert (mail.mailbox.host, mail.mailbox.port, mail.mailbox.security) == (
        "mx.example.com",
        587,
        "starttls",
    )
    assert other.service is ChannelService.APPRISE
    assert (chat.allow_http, chat.allow_private) == (True, True)
    rules = settings.rules()
    assert rules.routes == (
        NotificationRoute(
            ("nlp", "mail"),
            teams=frozenset({"nlp"}),
            kinds=frozenset({NoticeKind.FINDING, NoticeKind.ALERT}),
            least=NoticeRank.MEDIUM,
            clusters=("prod-*",),
            names=("idle_allocation",),
            stop=True,
            quiet=(QuietHours(22 * 60, 6 * 60 + 30, ZoneInfo("Europe/Berlin"), frozenset({4})),),
            cool_down_ms=HOUR_MS,
            escalation=RouteEscalation(("bot",), 2 * HOUR_MS, NoticeRank.CRITICAL),
            floor_nano=12_500_000_000,
        ),
        NotificationRoute(("bot",), platform=True, cool_down_ms=DAY_MS // 2, floor_nano=50 * NANO),
    )
    assert rules.update_every_ms == 60_000
    assert rules.channels["nlp"] == hook
    assert settings.links.service == "https://gpucost.example.com"
    assert SECRET not in repr((settings, rules))


def test_what_is_not_enabled_tells_nobody(tmp_path: Path) -> None:
    settings = notify(tmp_path, NLP, "{channels: [nlp], teams: [nlp]}", ", enabled: false")
    assert settings.rules() == RoutingRules()


def test_channels_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCOST_CONFIG", raising=False)
    monkeypatch.setenv("GPUCOST_NOTIFY__CHANNELS", f'[{{"name": "a", "service": "teams", "url": "{HOOK}"}}]')
    monkeypatch.setenv("GPUCOST_NOTIFY__ROUTES", '[{"channels": ["a"], "teams": ["nlp"]}]')
    monkeypatch.setenv("GPUCOST_NOTIFY__WEEKLY__HOUR", "7")
    settings = load_settings().notify
    assert [each.name for each in settings.channels] == ["a"]
    assert settings.weekly.hour == 7


TO_NLP = "{channels: [nlp], teams: [nlp]}"
WRONG_CHANNEL = {
    "no url": ("{name: a, service: slack}", "url", "url or url_file for slack"),
    "http": (f"{{name: a, service: teams, url: 'http://x/{SECRET}'}}", "url", "https://"),
    "user info": (f"{{name: a, service: teams, url: 'https://u:{SECRET}@x/'}}", "url", "no user info"),
    "no host": (f"{{name: a, service: teams, url: 'https:///{SECRET}'}}", "url", "a host"),
    "port": (f"{{name: a, service: teams, url: 'https://h:x/{SECRET}'}}", "url", "a host"),
    "apprise": (f"{{name: a, service: apprise, url: {SECRET}}}", "url", "a scheme"),
    "apprise of the machine": (
        f"{{name: a, service: apprise, url: 'file:///{SECRET}'}}",
        "url",
        "file:// is no address in the network; allowed: a service in the network",
    ),
    "apprise that reads a file": (
        f"{{name: a, service: apprise, url: 'slack://{SECRET}?template=/etc/{SECRET}'}}",
        "url",
        "template= reads a file, which is not allowed",
    ),
    "apprise that redirects": (
        f"{{name: a, service: apprise, url: 'jsons://h/{SECRET}?redirect=yes'}}",
        "url",
        "redirect= follows redirects",
    ),
    "token without room": (f"{{name: a, service: slack, token: {SECRET}}}", "room", "a room with a token"),
    "room without token": (f"{{name: a, service: slack, url: '{HOOK}', room: C}}", "room", "none without"),
    "token for teams": (
        f"{{name: a, service: teams, url: '{HOOK}', token: {SECRET}, room: C}}",
        "token",
        "slack",
    ),
    "token of two lines": (
        f'{{name: a, service: slack, token: "{SECRET}\\n", room: C}}',
        "token",
        "printable",
    ),
    "mail to nobody": ("{name: a, service: email}", "recipients", "mail addresses for email"),
    "mail with url": (f"{{name: a, service: email, recipients: [a@b.c], url: '{HOOK}'}}", "url", "no url"),
    "no address": (
        "{name: a, service: email, recipients: ['a@b.c, d@e.f']}",
        "recipients[0]",
        "gpu@example.com",
    ),
    "recipients": (
        f"{{name: a, service: slack, url: '{HOOK}', recipients: [a@b.c]}}",
        "recipients",
        "no other",
    ),
    "service": (f"{{name: a, service: icq, url: '{HOOK}'}}", "service", "slack"),
    "typo": (f"{{name: a, service: slack, ulr: '{HOOK}'}}", "ulr", "url (did you mean this?)"),
    "both": (f"{{name: a, service: slack, url: '{HOOK}', url_file: /dev/null}}", "url_file", "exists"),
    "url is a list": (f"{{name: a, service: slack, url: ['{SECRET}']}}", "url", "A secret"),
    "name": (f"{{name: '', service: slack, url: '{HOOK}'}}", "name", "1 to 253"),
}


@pytest.mark.parametrize(("channel", "key", "allowed"), WRONG_CHANNEL.values(), ids=WRONG_CHANNEL)
def test_a_wrong_channel(tmp_path: Path, channel: str, key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        notify(tmp_path, channel, "{channels: [a], teams: [nlp]}")
    assert caught.value.field == f"notify.channels[0].{key}"
    assert allowed in str(caught.value)
    assert SECRET not in str(caught.value)


WRONG_ROUTE = {
    "unknown channel": ("{channels: [npl], teams: [nlp]}", "channels[0]", "'npl'", "nlp, all"),
    "no channel": ("{channels: [], teams: [nlp]}", "channels", "()", "at least one"),
    "unknown escalation": (
        "{channels: [nlp], teams: [nlp], escalate: {channels: [x]}}",
        "escalate.channels[0]",
        "'x'",
        "the name of a channel",
    ),
    "every team to a team": ("{channels: [all, nlp]}", "channels[1]", "'nlp'", "sees_all: true"),
    "platform to a team": (
        "{channels: [nlp], teams: [nlp], platform: true}",
        "channels[0]",
        "'nlp'",
        "sees_all",
    ),
    "reserved team": ("{channels: [nlp], teams: [__no_team__]}", "teams[0]", "'__no_team__'", "nobody"),
    "kind": ("{channels: [all], kinds: [digests]}", "kinds[0]", "'digests'", "digest"),
    "severity": ("{channels: [all], min_severity: hi}", "min_severity", "'hi'", "critical"),
    "zone": (
        "{channels: [all], quiet: [{zone: Mars/Base}]}",
        "quiet[0].zone",
        "'Mars/Base'",
        "Europe/Berlin",
    ),
    "zone as a path": (
        "{channels: [all], quiet: [{zone: ../../etc}]}",
        "quiet[0].zone",
        "'../../etc'",
        "UTC",
    ),
    "clock": ("{channels: [all], quiet: [{start: '24:30'}]}", "quiet[0].start", "'24:30'", "HH:MM"),
    "clock as a number": ("{channels: [all], quiet: [{start: 2200}]}", "quiet[0].start", "2200", "in quotes"),
    "no length": (
        "{channels: [all], quiet: [{start: '07:00'}]}",
        "quiet[0].start",
        "'07:00'",
        "another time",
    ),
    "no day": ("{channels: [all], quiet: [{days: []}]}", "quiet[0].days", "no day", "monday"),
    "day": ("{channels: [all], quiet: [{days: [mon]}]}", "quiet[0].days[0]", "'mon'", "wednesday"),
    "no list": ("{channels: [all], clusters: 'prod-*'}", "clusters", "'prod-*'", "a list, in brackets"),
    "no list of hours": (
        "{channels: [all], quiet: {start: '20:00'}}",
        "quiet",
        "start",
        "a list, in brackets",
    ),
    "floor": ("{channels: [all], floor: -1}", "floor", "-1", "0"),
    "users without receipts": (
        "{channels: [all], users: [ada], kinds: [finding]}",
        "kinds",
        "finding",
        "receipt among kinds",
    ),
    "name": ("{channels: [all], names: [idle]}", "names[0]", "'idle'", "idle_allocation"),
    "for ever": (
        "{channels: [all], quiet: [{start: '00:00', end: '24:00'}]}",
        "quiet",
        "never end",
        "leave time",
    ),
    "cool-down": ("{channels: [all], cool_down: 32d}", "cool_down", "'32d'", "from 1m to 31d"),
    "after": (
        "{channels: [all], escalate: {channels: [all], after: 59s}}",
        "escalate.after",
        "'59s'",
        "from 1m",
    ),
}


@pytest.mark.parametrize(("route", "key", "value", "allowed"), WRONG_ROUTE.values(), ids=WRONG_ROUTE)
def test_a_wrong_route(tmp_path: Path, route: str, key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        notify(tmp_path, f"{NLP}, {ALL}", route)
    assert caught.value.field == f"notify.routes[0].{key}"
    assert value in str(caught.value)
    assert allowed in str(caught.value)


WRONG = {
    "a name twice": (f"channels: [{NLP}, {NLP}], routes: [{TO_NLP}]", "channels", "all different"),
    "mail without server": (
        "channels: [{name: a, service: email, recipients: [a@b.c]}], routes: []",
        "mail.host",
        "the name of a mail server, for channels[0]",
    ),
    "no route": (f"channels: [{NLP}]", "routes", "at least one route"),
    "channels as text": (f"channels: '{HOOK}'", "channels", "Where messages go"),
    "a channel as text": (f"channels: ['{HOOK}'], routes: []", "channels[0]", "a mapping of name"),
    "mail as text": (f"mail: {SECRET}", "mail", "a mapping of host"),
    "password as list": (f"mail: {{password: [{SECRET}]}}", "mail.password", "Password"),
    "password without user": (
        f"mail: {{host: h, sender: a@b.c, password: {SECRET}}}",
        "mail.username",
        "together",
    ),
    "password in the clear": (
        f"mail: {{host: h, sender: a@b.c, username: u, password: {SECRET}, security: none}}",
        "mail.security",
        "starttls or tls",
    ),
    "no sender": ("mail: {host: h}", "mail.sender", "host and sender together"),
    "hour": ("weekly: {hour: 24}", "weekly.hour", "0 to 23"),
    "weekday": ("weekly: {weekday: Mon}", "weekly.weekday", "wednesday"),
    "base url": ("base_url: gpucost.example.com", "base_url", "http:// or https://"),
    "update_every": ("update_every: 1s", "update_every", "from 10s"),
}


BOT = f"xoxb-12-{SECRET}"
MISPLACED = {
    "channels[0].url_file": f"channels: [{{name: a, service: slack, url_file: '{HOOK}'}}]",
    "channels[0].token_file": f"channels: [{{name: a, service: slack, token_file: {SECRET}, room: C1}}]",
    "channels[0].room": f"channels: [{{name: a, service: slack, room: {BOT}}}]",
    "channels[0].service": f"channels: [{{name: a, service: '{HOOK}'}}]",
    "channels[0].recipients[0]": f"channels: [{{name: a, service: email, recipients: ['{HOOK}']}}]",
    "channels[0].mention": f'channels: [{{name: a, service: email, mention: "{HOOK}\\n"}}]',
    "channels[0].(a key that is not shown here)": f"channels: [{{name: a, service: slack, '{HOOK}': x}}]",
    "channels": f"channels: [{', '.join([f'{{name: {BOT}, service: slack, url: https://h/x}}'] * 2)}]",
    "routes[0].channels[0]": f"channels: [{NLP}], routes: [{{channels: ['{HOOK}']}}]",
    "mail.host": f"mail: {{host: 'u:{SECRET}@h', sender: a@b.c}}",
    "mail.password_file": f"mail: {{host: h, sender: a@b.c, username: u, password_file: {SECRET}}}",
    "base_url": f"base_url: '{HOOK}?x'",
}


@pytest.mark.fault(55)
@pytest.mark.parametrize(("key", "text"), MISPLACED.items(), ids=MISPLACED)
def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"notify: {{{text}}}")
    assert caught.value.field == f"notify.{key}"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["mail", "smtp.example.com", "127.0.0.1", "::1", "mail_1.svc.cluster.local."]
)
def test_hosts_of_mail(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, f"notify: {{mail: {{host: '{host}', sender: a@b.c}}}}").notify.mail.host == host


@pytest.mark.parametrize("host", ["smtp://h", "h:25", "h/x", "u@h", "a..b", "[::1]", "h\n", "x" * 64, " h"])
def test_what_is_no_host_of_mail(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="the name or address of a host"):
        load(tmp_path, f"notify: {{mail: {{host: {json.dumps(host)}, sender: a@b.c}}}}")


@pytest.mark.parametrize(("text", "key", "allowed"), WRONG.values(), ids=WRONG)
def test_other_things_that_are_wrong(tmp_path: Path, text: str, key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"notify: {{{text}}}")
    assert caught.value.field == f"notify.{key}"
    assert allowed in str(caught.value)
    assert SECRET not in str(caught.value)


FIXED = "version: 1\nteams: [{name: nlp}]\nrules: [{team: nlp, namespace: nlp-*}]\n"


def test_a_team_that_no_rule_gives_is_refused(tmp_path: Path) -> None:
    rules = TeamRules.parse(FIXED, "teams.yaml")
    check_teams(notify(tmp_path, NLP, TO_NLP), rules)
    with pytest.raises(InputError) as caught:
        check_teams(notify(tmp_path, NLP, f"{TO_NLP}, {{channels: [nlp], teams: [nlp, nlq]}}"), rules)
    assert (caught.value.field, caught.value.value) == ("notify.routes[1].teams[1]", "nlq")
    assert "nlp" in caught.value.allowed


def test_where_teams_come_from_labels_any_may_be_one(tmp_path: Path) -> None:
    check_teams(notify(tmp_path, NLP, "{channels: [nlp], teams: [whoever]}"), TeamRules.default())


PAGE = Path(__file__).parents[2] / "docs" / "notifications.md"


def test_the_examples_of_the_page_are_settings(tmp_path: Path) -> None:
    """The first stands by itself; channels and routes of the others belong together."""
    text = re.sub(r"/etc/gpucost/[\w-]+", str(tmp_path / "secret"), PAGE.read_text(encoding="utf-8"))
    (tmp_path / "secret").write_text("https://example.com/hook", encoding="utf-8")
    first, channels, routes, receipts = re.findall(r"```yaml\n(notify:\n.*?)```", text, re.DOTALL)
    (route,) = load(tmp_path, first).notify.routes
    assert route.min_severity is NoticeRank.MEDIUM
    both = load(tmp_path, channels + routes.removeprefix("notify:\n")).notify
    assert [each.service for each in both.channels] == ["slack", "teams", "mattermost", "email", "apprise"]
    assert [each.channels for each in both.routes] == [("nlp",), ("finance",), ("oncall",)]
    ada = "  channels:\n" + "".join(
        f"    - {{name: {each}, service: slack, url_file: {tmp_path / 'secret'}}}\n"
        for each in ("nlp", "ada")
    )
    told = load(tmp_path, f"notify:\n{ada}{receipts.removeprefix('notify:' + chr(10))}").notify
    assert [each.floor for each in told.routes] == [100, 0]


def test_secrets_in_files_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(HOOK, encoding="utf-8")
    settings = notify(tmp_path, f"{{name: nlp, service: teams, url_file: {file}}}", TO_NLP)
    file.write_text("https://example.com/new\n", encoding="utf-8")
    (channel,) = settings.channel_list()
    assert channel.url is not None
    assert channel.url.get_secret_value() == "https://example.com/new"


def test_a_cool_down_of_its_own(tmp_path: Path) -> None:
    settings = notify(tmp_path, NLP, f"{TO_NLP}, {{channels: [nlp], teams: [nlp], cool_down: 1m}}")
    base = NotificationRoute(("nlp",), teams=frozenset({"nlp"}), floor_nano=50 * NANO)
    assert settings.cool_down == timedelta(days=1)
    assert settings.rules().routes == (base, replace(base, cool_down_ms=60_000))
