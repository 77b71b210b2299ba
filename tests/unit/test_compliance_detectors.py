from __future__ import annotations

import pytest

from functions.workflows.scanning.dates import find_dates
from functions.workflows.scanning.detectors import detect
from functions.workflows.scanning.ibans import is_iban
from functions.workflows.scanning.passage import Format, Passage

OFFICIAL_EXAMPLES = """
AD1200012030200359100100 AE070331234567890123456 AT611904300234573201 BE68539007547034
BR1800360305000010009795493C1 CH9300762011623852957 CY17002001280000001200527600
CZ6508000000192000145399 DK5000400440116243 EE382200221020145685 ES9121000418450200051332
FI2112345600000785 GI75NWBK000000007099453 GR1601101250000000012300695 HR1210010051863000160
HU42117730161111101800000000 IE29AIBK93115212345678 IL620108000000099999999 IS140159260076545510730339
IT60X0542811101000000123456 KW81CBKU0000000000001234560101 LI21088100002324013AA LT121000011101001000
LU280019400644750000 LV80BANK0000435195001 MC5811222000010123456789030 MT84MALT011000012345MTLCAST001S
NL91ABNA0417164300 PL61109010140000071219812874 PT50000201231234567890154 RO49AAAA1B31007593840000
SA0380000000608010167519 SE4550000000058398257466 SI56263300012039086 SK3112000000198742637541
SM86U0322509800000000270100 TR330006100519786457841326 XK051212012345678906
MU17BOMM0101101030300200000MUR
"""


def found(text: str, form: Format = "text") -> list[tuple[str, str]]:
    return [(match.kind.value, match.value) for match in detect(Passage(text, form=form))]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("write to Ann.Lee+tax@kestrel.se.", "email", "ann.lee+tax@kestrel.se"),
        ("<mailto:q.r@ab-cd.co.uk>", "email", "q.r@ab-cd.co.uk"),
        ("contact=jo@müller.de;", "email", "jo@müller.de"),
        ("to DE89 3704 0044 0532 0130 00 and then", "iban", "DE89370400440532013000"),
        ("IBAN:gb29nwbk60161331926819", "iban", "GB29NWBK60161331926819"),
        ("FR14 2004 1010 0505 0001 3M02 606 BIC", "iban", "FR1420041010050500013M02606"),
        ("NO93-8601-1117-947", "iban", "NO9386011117947"),
        ("4539 1488 0343 6467 12/27", "card", "4539148803436467"),
        ("4539-1488-0343-6467 123", "card", "4539148803436467"),
        ("3714\u00a0496353\u00a098449", "card", "371449635398449"),
        ("paid with 2221000000000827.", "card", "2221000000000827"),
        ("no hyphens, SSN: 536904399", "ssn", "536904399"),
        ("(536-90-4399)", "ssn", "536904399"),
        ("Social Security 536 90 4399", "ssn", "536904399"),
        ("+44 (0)20 7946 0123 2024", "phone", "+442079460123"),
        ("+39 06 69812345", "phone", "+390669812345"),
        ("(415) 555-0123", "phone", "+14155550123"),
        ("call 415 555 0123 now", "phone", "+14155550123"),
        ("1-415-555-0123", "phone", "+14155550123"),
        ("0049 30 23125 124", "phone", "+493023125124"),
        ("020 7946 0958", "phone", "02079460958"),
        ("01 99 00 12 34", "phone", "0199001234"),
        ("030/23125123", "phone", "03023125123"),
        ("Mobile: 07700900123", "phone", "07700900123"),
        ("+4930\u00a023125\u2011123", "phone", "+493023125123"),
    ],
)
def test_an_identifier_is_found_however_it_is_written(text: str, kind: str, value: str) -> None:
    assert found(text) == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "someone@example.com, a@b.test and root@localhost",
        "git@github.com:org/repo.git, git@github.com and deploy@build.kestrel.se:/srv",
        "https://user:secret@host.kestrel.se/ and ftp://anna@files.kestrel.se",
        "icon@2x.png, @dataclass, pkg@1.2.3",
        "Message-ID: <CAF+xyz@mail.kestrel.se>",
        "DE88 3704 0044 0532 0130 00",
        "DE8937040044053201300",
        "ZZ89 3704 0044 0532 0130 00",
        "4539 1488 0343 6468",
        "4111 1111 1111 1111 and 378282246310005",
        "9999 9999 9999 9995",
        "539148803436467453914880343646745",
        "0.4539148803436467",
        "id 4539148803436467-aa",
        "4006381333931 is an article",
        "1700000000000000000 ns",
        "CH87 4539 1488 0343 6467 7 has a wrong checksum",
        "000-12-3456, 666-12-3456, 912-12-3456, 536-00-4399, 536-90-0000",
        "078-05-1120 was printed on a sample card",
        "order no. 536-90-4399",
        "536 90 4399 or 536904399 without a label",
        "2536-90-4399 and 536-90-43991",
        "192.168.100.200 and 4.155.555.0123",
        "part number 415-555-0123",
        "call 911-555-0123 or 415-911-0123",
        "rows 01 02 03 04 05",
        "550e8400-e29b-41d4-a716-446655440000",
        "ISBN 978-3-16-148410-0",
        "@@ -1200,45 +1234,50 @@ and +40.20361-075.00417",
        "0000123456789",
        "DE58 2155 0097 3171 6432 05 has a wrong checksum",
        "415 555 0123 without a label",
    ],
)
def test_what_only_looks_like_an_identifier_is_left_alone(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "iban",
    OFFICIAL_EXAMPLES.split(),
)
def test_the_registry_knows_each_countrys_own_example(iban: str) -> None:
    assert is_iban(iban)
    assert not is_iban(iban[:-1])
    assert not is_iban(iban + "0")


@pytest.mark.parametrize(
    ("text", "day", "is_record"),
    [
        ("Date: 2011-03-04", "2011-03-04", True),
        ("Signed on 4 March 2011.", "2011-03-04", True),
        ("Datum: 04.03.2011", "2011-03-04", True),
        ("invoice date: March 4th, 2011", "2011-03-04", True),
        ('{"created_at": "2011-03-04T10:00:00Z"}', "2011-03-04", True),
        ("Fait le 4 août 2011", "2011-08-04", True),
        ("as decided on 2011-03-04", "2011-03-04", False),
        ("Birth date: 1970-01-01", "1970-01-01", False),
        ("Valid until date: 2011-03-04", "2011-03-04", False),
    ],
)
def test_a_record_date_is_told_from_a_date_that_is_only_mentioned(
    text: str, day: str, is_record: bool
) -> None:
    (date,) = find_dates(Passage(text))
    assert (date.day.isoformat(), date.is_record) == (day, is_record)


def test_a_date_with_two_readings_counts_as_the_later_one() -> None:
    (date,) = find_dates(Passage("Date: 11/03/2018"))
    assert date.day.isoformat() == "2018-11-03"


@pytest.mark.parametrize("text", ["2011-02-30", "1.2.2011.4", "12011-03-04", "2011-03-045", "31/31/2011"])
def test_no_date_is_made_of_what_is_none(text: str) -> None:
    assert list(find_dates(Passage(text))) == []


def test_a_csv_header_labels_the_cells_below_it_across_quotes_and_line_ends() -> None:
    text = 'note,"ss\nn",phone\n"a ""b"",\n",536904399,4155550123\nx,536904398,\n'
    assert found(text, "csv") == [("phone", "+14155550123")]
    assert found(text.replace("ss\nn", "ssn"), "csv") == [
        ("ssn", "536904399"),
        ("phone", "+14155550123"),
        ("ssn", "536904398"),
    ]


def test_a_place_in_json_is_where_it_stands_in_the_file_not_in_the_unescaped_text() -> None:
    passage = Passage('{"a": "x\\n\\u00e9",\n "m": "\\"jo\\u0040kestrel.se"}', form="json")
    (match,) = detect(passage)
    assert match.value == "jo@kestrel.se"
    assert passage.place(match.start) == (2, 10)


def test_where_two_kinds_overlap_only_one_is_found() -> None:
    assert found("Phone 0049 30 23125 124@kestrel.se") == [("email", "124@kestrel.se")]
