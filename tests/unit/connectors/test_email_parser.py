"""Parsing of emails: text, attachments, senders and their authentication."""

from __future__ import annotations

import random
import time
from base64 import b64encode
from email import policy
from email.message import EmailMessage
from typing import cast

import pytest

from torana.connectors.platforms.email import parser
from torana.connectors.platforms.email.parser import PARTS_LIMIT, TEXT_LIMIT, ParsedEmail, read
from torana.connectors.platforms.email.sender_auth import authentication_fault, automatic_reason
from torana.connectors.platforms.email.text import plain_of, strip_quotation

HEAD = b"From: Ana <ana@people.test>\r\nMessage-ID: <1@people.test>\r\nSubject: hi\r\n"

#: Attribution lines of several languages and programs.
ABOVE = [
    "On Mon, Mar 2, 2026 at 9:30 AM Bot <bot@mail.test> wrote:",
    "On 2 Mar 2026, at 09:30, Bot <bot@mail.test> wrote:",
    "On Mon, Mar 2, 2026 at 9:30 AM A Very Long Name Indeed <bot@mail.test>\nwrote:",
    "Am 02.03.26 um 09:30 schrieb Bot:",
    "Am Mo., 2. März 2026 um 09:30 Uhr schrieb Bot <\nbot@mail.test>:",
    "Le lun. 2 mars 2026 à 09:30, Bot <bot@mail.test> a écrit :",
    "El lun, 2 mar 2026 a las 9:30, Bot (<bot@mail.test>) escribió:",
    "Em seg., 2 de mar. de 2026 às 09:30, Bot <bot@mail.test> escreveu:",
    "Il giorno lun 2 mar 2026 alle ore 09:30 Bot <bot@mail.test> ha scritto:",
    "Op ma 2 mrt 2026 om 09:30 schreef Bot <bot@mail.test>:",
    "Den mån 2 mars 2026 kl 09:30 skrev Bot <bot@mail.test>:",
    "Den man. 2. mar. 2026 kl. 09.30 skrev Bot <bot@mail.test>:",
    "pon., 2 mar 2026 o 09:30 Bot <bot@mail.test> napisał(a):",
    "пн, 2 мар. 2026 г. в 09:30, Bot <bot@mail.test>:",
    "02.03.2026 09:30, Bot пишет:",
    "Bot <bot@mail.test> 于2026年3月2日周一 09:30写道：",
    "2026年3月2日(月) 9:30 Bot <bot@mail.test>:",
    "2026년 3월 2일 (월) 오전 9:30, Bot <bot@mail.test>님이 작성:",
    "Bot <bot@mail.test>, 2 Mar 2026 Pzt, 09:30 tarihinde şunu yazdı:",
]
#: Headers of quoted mails, without marks at the quotation.
HEADS = [
    "-----Original Message-----\nFrom: Bot",
    "-----Ursprüngliche Nachricht-----\nVon: Bot",
    "-----Message d'origine-----\nDe : Bot",
    "________________________________\nFrom: Bot <bot@mail.test>\nSent: Monday, March 2, 2026 9:30 AM\nTo: Ana",
    "Von: Bot <bot@mail.test>\nGesendet: Montag, 2. März 2026 09:30\nAn: Ana",
    "De : Bot <bot@mail.test>\nEnvoyé : lundi 2 mars 2026 09:30\nÀ : Ana",
    "发件人: Bot <bot@mail.test>\n发送时间: 2026年3月2日 9:30\n收件人: Ana",
    "-- \nAna\nPeople Ltd",
]


def letter(**headers: str) -> ParsedEmail:
    message = EmailMessage(policy=policy.SMTP)
    for name, value in ({"From": "Ana <ana@people.test>"} | headers).items():
        message[name.replace("_", "-")] = value
    message.set_content("hello")
    return read(message.as_bytes())


@pytest.mark.parametrize("above", ABOVE)
def test_quotation_is_cut_off(above: str) -> None:
    quoted = "> What\n> I said"

    assert strip_quotation(f"Yes, at 10:00.\n\n{above}\n{quoted}\n") == "Yes, at 10:00."
    assert strip_quotation(f"Dear Bot,\n{above}\n\n{quoted}\n") == "Dear Bot,"
    assert strip_quotation(f"{above}\n{quoted}\n\nBelow.\n> more\nAnd here.") == "Below.\nAnd here."
    assert strip_quotation(f"Yes.\n\n{above}\n\nWithout any marks.") == "Yes."


@pytest.mark.parametrize("head", HEADS)
def test_original_message_below_reply_is_cut_off(head: str) -> None:
    assert strip_quotation(f"Yes.\n\nNo.\n\n{head}\n\nwhat was said").strip("_\n") == "Yes.\n\nNo."


@pytest.mark.parametrize(
    "text",
    [
        "Shall we say 9:30?\nBring:\n\n- bread",
        "She wrote:\na book",
        "From: Lisbon\nTo: Porto",
        "a -- b",
        "1 > 0",
        "> only a quotation",
        "On Mon, 2 Mar 2026 at 9:30 Ana <ana@people.test> wrote:\nnothing above",
    ],
)
def test_own_text_of_sender_is_kept(text: str) -> None:
    assert strip_quotation(text) == text


def test_mobile_signature_is_cut_off() -> None:
    assert strip_quotation("Yes\n\nSent from my iPhone") == "Yes"
    assert strip_quotation("Ja\n\nVon meinem iPhone gesendet") == "Ja"


def test_forwarded_text_is_kept() -> None:
    raw = (
        HEAD.replace(b"Subject: hi", b"Subject: Fwd: news")
        + b"\r\nlook\r\n\r\nFrom: Bob\r\nSent: today\r\n\r\nNews!"
    )

    assert "News!" in read(raw).text


def test_html_becomes_text() -> None:
    page = """<!DOCTYPE html><html><head><title>no</title><style>p {color: red}</style></head><body>
      <!-- no --><p>One &amp;
      two</p><ul><li>a<li>b</ul><div>three<br>four</div><a href="https://x.test/?a=1&amp;b=2">here</a>
      <script>alert("<p>no</p>")</script><pre>  as
   it is</pre>
      <blockquote><p>said before</p></blockquote>if 1 < 2 and 3 > 2</body>"""

    assert plain_of(page) == (
        "One & two\n\n• a\n• b\n\nthree\nfour\nhere (https://x.test/?a=1&b=2)\n\n  as\n   it is\n\n"
        "> said before\n\nif 1 < 2 and 3 > 2"
    )


@pytest.mark.parametrize(
    ("headers", "parent"),
    [
        (b"References: <1@a.test> <2@a.test>\r\nIn-Reply-To: <2@a.test>\r\n", "<2@a.test>"),
        (b"References: <1@a.test>\r\nIn-Reply-To: <2@a.test>\r\n", "<2@a.test>"),
        (b"References: <1@a.test> <2@a.test>\r\n", "<2@a.test>"),
        (b"In-Reply-To: <2@a.test>\r\n", "<2@a.test>"),
        (b"", None),
    ],
)
def test_answered_mail_is_known(headers: bytes, parent: str | None) -> None:
    assert read(HEAD + headers + b"\r\nyes").in_reply_to == parent


@pytest.mark.parametrize("digits", [10, 5_000])
def test_huge_character_references_keep_text(digits: int) -> None:
    raw = HEAD + b"Content-Type: text/html; charset=utf-8\r\n\r\n<p>Buy tea. &#" + b"9" * digits + b";</p>"

    assert read(raw).text.startswith("Buy tea. ")


def test_html_only_email_is_read_without_quotations() -> None:
    page = (
        "<div>Yes, at ten.</div><div class=gmail_quote><div>On Mon, Mar 2, 2026 at 9:30 AM Bot wrote:<br></div>"
        "<blockquote>shall we?</blockquote></div>"
    )
    raw = HEAD + b"Content-Type: text/html; charset=utf-8\r\n\r\n" + page.encode()

    assert read(raw).text == "Yes, at ten."


def test_text_and_attached_files_are_separated() -> None:
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = "ana@people.test"
    message.set_content("plain wörds")
    message.add_alternative("<p>rich words</p>", subtype="html")
    rich = cast("EmailMessage", list(message.iter_parts())[1])
    rich.add_related(b"GIF", "image", "gif", cid="<1>")
    message.add_attachment("attached text", filename="größe/../1.txt")
    forwarded = EmailMessage()
    forwarded["Subject"] = "inner"
    forwarded.set_content("inner words")
    message.add_attachment(forwarded)
    found = read(message.as_bytes())

    assert found.text == "plain wörds"
    assert [(file.name, file.media_type) for file in found.files] == [
        ("", "image/gif"),
        ("größe_.._1.txt", "text/plain"),
        ("", "message/rfc822"),
    ]
    assert [file.decode().strip() for file in found.files[:2]] == [b"GIF", b"attached text"]
    assert [file.size for file in found.files[:1]] == [3]
    assert b"inner words" in found.files[2].decode()


def test_last_file_of_truncated_email_is_incomplete() -> None:
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = "ana@people.test"
    message.set_content("words")
    for name in ("a", "b"):
        message.add_attachment(bytes(3000), "x", "y", filename=name)
    raw = message.as_bytes()

    assert [file.whole for file in read(raw[:-2000], whole=False).files] == [True, False]
    assert [file.whole for file in read(raw).files] == [True, True]


@pytest.mark.parametrize(
    ("encoding", "charset", "body", "text"),
    [
        (b"base64", b"utf-8", b64encode("wörd".encode()), "wörd"),
        (b"base64", b"utf-8", b"d29y\r\n!!ZA", "word"),
        (b"base64", b"utf-8", b"d29yZ", "wor"),
        (b"quoted-printable", b"utf-8", b"w=C3=B6rd=\r\ns =ZZ", "wörds =ZZ"),
        (b"8bit", b"iso-8859-1", b"w\xf6rd", "wörd"),
        (b"8bit", b"windows-1252", b"w\x93rd", "w“rd"),
        (b"8bit", b"us-ascii", "wörd".encode(), "wörd"),
        (b"8bit", b"no-such", "wörd".encode(), "wörd"),
        (b"8bit", b"punycode", b"w-", "w-"),
        (b"8bit", b"base64", b"word", "word"),
        (b"8bit", b"utf-8", b"w\xffrd\x00\x1b[31m", "w\ufffdrd[31m"),
        (b"no-such", b"gb18030", "字".encode("gb18030"), "字"),
    ],
)
def test_text_is_decoded_despite_wrong_encodings(
    encoding: bytes, charset: bytes, body: bytes, text: str
) -> None:
    head = b"Content-Type: text/plain; charset=%b\r\nContent-Transfer-Encoding: %b\r\n\r\n" % (
        charset,
        encoding,
    )

    assert read(HEAD + head + body).text == text


@pytest.mark.parametrize(
    ("given", "address", "name"),
    [
        ("ana@people.test", "ana@people.test", ""),
        ("<Ana@People.TEST>", "ana@people.test", ""),
        ('"Ana, \\"A\\" (home)" <ana@people.test>', "ana@people.test", 'Ana, "A" (home)'),
        ("=?utf-8?q?=C3=81na=0AX?= <ana@people.test>", "ana@people.test", "Ána X"),
        ("Ána\u202e\u200b <ana@people.test>", "ana@people.test", "Ána"),
        ("ana@people.test <bob@people.test>", "", ""),
        ("Ana <ana@people.test>, Bob <bob@people.test>", "", ""),
        ("ana@people.test]<bob@people.test>", "", ""),
        ("<ana@people.test> (<bob@people.test>)", "", ""),
        ("Group: ana@people.test;", "", ""),
        ('"ana@people.test "@evil.test', "", ""),
        ("ána@people.test", "", ""),
        ("ana@people.test" + " " * 9_000 + ", bob@people.test", "", ""),
        ("nobody", "", ""),
        ("", "", ""),
    ],
)
def test_email_has_one_sender_or_none(given: str, address: str, name: str) -> None:
    found = read(f"From: {given}\r\n\r\nhi".encode())

    assert (found.address, found.name) == (address, name)


def test_only_line_ends_separate_headers() -> None:
    for end in ("\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"):
        found = read(f"Subject: a{end}From: bob@people.test\r\nFrom: ana@people.test\r\n\r\nhi".encode())

        assert found.address == "ana@people.test"
    assert read(b"From: ana@people.test\r\nFrom: bob@people.test\r\n\r\nhi").address == ""


def test_subject_is_one_bounded_line() -> None:
    found = read(b"Subject: =?utf-8?q?a=0D=0ABcc:_x=E2=80=AE?=\r\n =?no-such?b?eQ==?=\r\n\r\nhi")

    assert found.subject == "a Bcc: xy"
    assert len(letter(Subject="x" * 900).subject) == 300


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Auto-Submitted", "auto-replied (vacation)"),
        ("Auto-Submitted", "auto-generated; owner-email=x"),
        ("Precedence", "Bulk"),
        ("List-Id", "<l.people.test>"),
        ("List-Unsubscribe", "<mailto:l@people.test>"),
        ("Return-Path", "<>"),
        ("X-Auto-Response-Suppress", "All"),
        ("From", "MAILER-DAEMON@people.test"),
        ("From", "no-reply@people.test"),
        ("From", "Do Not Reply <donotreply+7@people.test>"),
        ("From", "bounces=ana@people.test"),
    ],
)
def test_automatic_emails_are_recognized(header: str, value: str) -> None:
    assert automatic_reason(letter(**{header.replace("-", "_"): value})) is not None


def test_delivery_report_is_automatic() -> None:
    raw = HEAD + b"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\n\r\nhi\r\n--b--"

    assert automatic_reason(read(raw)) == "delivery report"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Auto_Submitted": "no"}, {"Return_Path": "<ana@people.test>"}, {"From": "noreplyna@people.test"}],
)
def test_personal_emails_are_not_automatic(headers: dict[str, str]) -> None:
    assert automatic_reason(letter(**headers)) is None


def test_empty_lines_below_quotation_cost_no_more_than_words() -> None:
    costs: list[float] = []
    for line in ("x\n", "\n"):
        before = time.process_time()
        read(HEAD + b"\r\n>\n" + line.encode() * 40_000 + b"x")
        costs.append(time.process_time() - before)

    assert costs[1] < 30 * costs[0]


GOOD = "mx.test; dmarc=pass (p=reject) header.from=people.test"

GMAIL = (
    'mx.test;\r\n dkim=pass header.i=@people.test header.s=2023 header.b="Ab/c=";\r\n spf=pass (mx.test: '
    "domain of a@people.test designates 192.0.2.1 as permitted sender) smtp.mailfrom=a@people.test;\r\n "
    "dmarc=pass (p=NONE sp=QUARANTINE dis=NONE) header.from=people.test"
)


def test_authentication_results_with_long_name_cost_no_more_than_words() -> None:
    costs: list[float] = []
    for text in ("a " * 4_000, "a" * 8_000):
        before = time.process_time()
        authentication_fault(_with_results([f"mx.test; {text}"]), "mx.test")
        costs.append(time.process_time() - before)

    assert costs[1] < 30 * costs[0]


@pytest.mark.parametrize(
    "results",
    [
        [GOOD],
        ["MX.test 1; DMARC=PASS header.from=People.test"],
        ["mx.test; dkim=pass header.d=other.test; spf=fail; " + GOOD[9:]],
        ["other.test; dmarc=fail header.from=people.test", GOOD],
        [GOOD, "mx.test; dmarc=fail header.from=people.test"],  # the lower header comes from another server
        ["mx.test; dmarc=none header.from=people.test; spf=pass smtp.mailfrom=x@people.test"],
        ["mx.test; spf=pass smtp.mailfrom=people.test"],
        ["mx.test; dkim=pass header.i=@people.test header.s=2023 header.b=a/b+c="],
        [GMAIL],
        ["mx.test; dkim=fail header.d=x.test; dkim=pass header.d=people.test", "mx.test; spf=none"],
        ['mx.test; dkim=pass reason="good; dmarc=fail" header.d=people.test (a (b; dmarc=fail) c)'],
    ],
)
def test_sender_verified_by_server_is_accepted(results: list[str]) -> None:
    assert authentication_fault(_with_results(results), "mx.test") is None


@pytest.mark.parametrize(
    "results",
    [
        [],
        ["other.test; dmarc=pass header.from=people.test"],
        ["mx.test.evil; dmarc=pass header.from=people.test"],
        ["; dmarc=pass header.from=people.test"],
        ["mx.test; none"],
        ["mx.test; dmarc=pass header.from=other.test"],
        ["mx.test; dmarc=pass"],
        ["mx.test; dmarc=fail header.from=people.test", GOOD],
        ["mx.test; dmarc=fail; spf=pass smtp.mailfrom=people.test"],
        [GOOD + "; dmarc=fail header.from=people.test"],
        ["mx.test; spf=pass smtp.mailfrom=x@other.test; dkim=pass header.d=other.test"],
        ["mx.test; spf=pass smtp.mailfrom=sub.people.test"],
        ["mx.test; dkim=pass header.d=test"],
        ["mx.test; dkim=pass header.i=people.test@other.test"],
        ["mx.test; dkim=pass header.d=other.test header.i=@people.test"],
        ["mx.test; dkim=pass header.d=eople.test"],
        ["mx.test; dkim=fail header.d=people.test"],
        ["mx.test; spf=softfail smtp.mailfrom=people.test"],
        ["mx.test; dkim=pass header.d=other.test", "mx.test; dkim=pass header.d=people.test"],
        # Headers that a sender wrote, below the header of an honest server.
        ["mx.test; spf=fail", GOOD],
        ["mx.test; none", GOOD],
        ["mx.test; dmarc=none", "mx.test; spf=pass smtp.mailfrom=people.test"],
        ["mx.test; spf=fail (of x; y", GOOD],
        ['mx.test; spf=fail smtp.helo="x', GOOD],
        # Text that a sender can insert into the results of an honest server.
        ['mx.test; spf=fail smtp.mailfrom="; dmarc=pass header.from=people.test;"@evil.test'],
        ['mx.test; spf=fail (of "x); dmarc=pass header.from=people.test (y"@evil.test) smtp.helo=x'],
        ["mx.test; spf=fail (of x; dmarc=pass header.from=people.test"],
        ["mx.test; spf=fail ) dmarc=pass header.from=people.test"],
        ['mx.test; spf=fail smtp.helo="x; dmarc=pass header.from=people.test'],
        ["mx.test; spf=fail smtp.helo=x dmarc=pass header.from=people.test"],
    ],
)
def test_sender_not_verified_by_server_is_doubted(results: list[str]) -> None:
    assert authentication_fault(_with_results(results), "mx.test") is not None


def _with_results(results: list[str]) -> ParsedEmail:
    head = "".join(f"Authentication-Results: {result}\r\n" for result in results)
    return read(head.encode() + HEAD + b"\r\nhi")


def test_parent_domain_authenticates_its_subdomains() -> None:
    raw = b"Authentication-Results: mx.test; dkim=pass header.d=people.test\r\nFrom: a@x.people.test\r\n\r\nhi"

    assert authentication_fault(read(raw), "mx.test") is None


MIXED = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
SIZE = 4_000_000


def _nested(depth: int) -> bytes:
    levels = [
        b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (level, level)
        for level in range(depth)
    ]
    return b"".join(levels) + b"Content-Type: text/plain\r\n\r\n" + b"\n--b\n" * (SIZE // 5)


BOMBS = {
    "parts in parts": _nested(500),
    "parts": MIXED + b"--b\n\nx\n" * (SIZE // 8),
    "no parts": MIXED + b"--b\n" * (SIZE // 4),
    "semicolons": b"Content-Type: text/plain; " + b';"' * 100_000 + b"\r\n\r\nx",
    "semicolons in a part": MIXED + b"--b\nContent-Type: x/y; " + b';"' * (SIZE // 2) + b"\n\nx",
    "encoded words": b"X: y\r\nSubject: " + b"=?a?q?x" * 30_000 + b"\r\n\r\nx",
    "bad base64": b"Content-Transfer-Encoding: base64\r\n\r\n" + b"=#A" * (SIZE // 3),
    "punycode": b"Content-Type: text/plain; charset=punycode\r\n\r\n" + b"a-" * (SIZE // 2),
    "anything": MIXED + random.Random(1).randbytes(SIZE),
    "said": b"\r\nx\n" + b"From: \n9:30 <a@b.c>:\n" * (SIZE // 21),
} | {
    f"html {piece}": b"Content-Type: text/html\r\n\r\n" + piece.encode() * (SIZE // len(piece))
    for piece in (
        "<a ",
        "<!--",
        "</",
        "<!",
        "&#",
        "<style>",
        "<aaaaaaaa",
        "<blockquote>",
        "<a href=http://x>",
        "<li>",
    )
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", BOMBS)
def test_malicious_emails_are_parsed_quickly(name: str) -> None:
    """The standard library's parsers need minutes to hours for many of these."""
    found = read(HEAD + BOMBS[name])

    assert found.address == "ana@people.test"
    assert len(found.files) <= PARTS_LIMIT


def test_endless_header_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        read(HEAD + b"X: y\r\n" * SIZE)


@pytest.mark.parametrize("kind", ["mixed", "alternative"])
def test_html_of_all_parts_together_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []

    def count(html: str) -> str:
        converted.append(len(html))
        return plain_of(html)

    monkeypatch.setattr(parser, "plain_of", count)
    part = b"--b\r\nContent-Type: text/html\r\n\r\n" + b"<p>x" * (TEXT_LIMIT // 8) + b"\r\n"
    head = HEAD + b"Content-Type: multipart/" + kind.encode() + b"; boundary=b\r\n\r\n"

    parsed = read(head + part * 10 + b"--b--\r\n")

    assert parsed.text.startswith("x")
    assert TEXT_LIMIT // 2 < sum(converted) <= TEXT_LIMIT
