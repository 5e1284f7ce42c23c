"""The bytes of every command are a format: they lie in journals. Fields are only appended, with
defaults."""

from typing import get_args

import msgspec
import pytest
from msgspec import structs

from polynya.base.levels import LEVELS
from polynya.base.transforms import Transform
from polynya.stream.command import Command, level_for, level_of, tag_of
from polynya.stream.command_validation import describe_fault
from polynya.stream.features.appends.commands import (
    Append,
    AppendAll,
    AppendIf,
    Bundle,
    MirrorBatch,
    MirrorGap,
    Produce,
    ProducerIds,
    TxnAppend,
    TxnProduce,
)
from polynya.stream.features.attributes.commands import SetAttributes
from polynya.stream.features.compaction.commands import NoteCompaction, SetCompaction
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupMember,
    ConsumerGroupPut,
    ConsumerPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
    OffsetEntry,
    TxnOffsets,
)
from polynya.stream.features.consumer_groups.modern_records import Holdings, Subscription
from polynya.stream.features.forks.commands import (
    Acknowledge,
    AcknowledgeAll,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import (
    Create,
    CreateWithAttributes,
    Delete,
    Expire,
    Touch,
)
from polynya.stream.features.markers.commands import DecideEntries, TxnMarkers, TxnSettle
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.features.marks.commands import DropSnapshot, PublishSnapshot
from polynya.stream.features.packs.commands import (
    PackDeleted,
    PackWritten,
    PublishSlices,
    ReleasePack,
    ReplaceSlices,
)
from polynya.stream.features.pages.commands import Evict, PageEntries, ReleasePaged, Return
from polynya.stream.features.placement.commands import (
    ClusterBorn,
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    Placement,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    PackedAppend,
    PackedSlice,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.features.retention.commands import BucketRetention, SetRetention, Trim, TrimTo
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.settings.commands import MetaChange, MetaSet, SetLevel
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    ForgetFailure,
    LinkSubscription,
    ResetLinks,
    SubscriptionConfig,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionPutLimited,
    SubscriptionRetry,
    SubscriptionStreams,
    SubscriptionWorker,
    UnlinkSubscription,
)
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    ForgetTable,
    TableAbandon,
    TableAlter,
    TableCommit,
    TableCreate,
    TableDrop,
    TableFail,
    TableFault,
    TableMake,
    TableMove,
    TableOpen,
    TablePlanned,
    TableReplace,
    TableRetry,
    WatchStreams,
)
from polynya.stream.features.topics.commands import (
    TopicChange,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
)
from polynya.stream.features.transactions.commands import (
    TxnAdd,
    TxnAsk,
    TxnEnd,
    TxnExpire,
    TxnForget,
    TxnHold,
    TxnInit,
)
from polynya.stream.parts import (
    COMPRESSED,
    Batch,
    ColdSlice,
    Encoding,
    Fork,
    Producer,
    Retention,
    SegmentLimits,
)
from polynya.stream.registry import AnyCommand

BATCH = Batch(Encoding.JSON, 2, b"1,22,", 0xE3069283, bytes([2, 0, 0, 0, 3, 0, 0, 0]), 0, 0, 7)
PRODUCER = Producer("p", 1, 2)
MODERN_MEMBER = ConsumerGroupMember(
    "m",
    "i",
    "c",
    "/h",
    0,
    60000,
    msgspec.msgpack.encode(Subscription(["t"], "u.*", ["kafka/"], "uniform", None)),
    msgspec.msgpack.encode(
        Holdings(2, 1, False, [(bytes(16), [(0, 1)])], [(bytes(16), [(1, 1)])], [(bytes(16), [0])])
    ),
)
MEMBER = ConsumerGroupMember("m", "i", "c", "/h", 10000, 60000, b"s", b"a")
KAFKA_BATCH = Batch(Encoding.KAFKA, 3, b"12345", 0xE3069283, flags=1, record_time_ms_max=7)
FORK = Fork("ab" * 16, "docs/a", 1 << 48 | 7, 3, 9, "0000000000000003_0000000000000009", 0, 2, 1, 4)
SLICE = ColdSlice(0, 0, 2, 5, "packs/20260101-00/1-ff", 24, 61, 0xE3069283, 8, 2, 9, 1, 2, 3, 4, 1)
CONFIG = SubscriptionConfig(1, "docs/*", ["docs/a"], "", "default/wake", 30000, "d")
NODE = NodeRecord(4, "h:1", "http://h", "z", 2, NodeState.CORDONED, 3)
READER = NodeRecord(5, "h:2", "http://i", "far", reader=True)
PACKED = [
    PackedAppend(
        Append("docs/a", 3, "application/json", Batch(1, 2, b"", 0xE3069283), PRODUCER), 5
    ),
    PackedAppend(Append("docs/a", 4, "", None, close=True)),
]
COMMIT = CommitSlices(
    "packs/20260101-00/1-ff",
    1,
    "ab" * 16,
    3,
    4,
    [
        PackedSlice(24, 61, 0xE3069283, 1, PACKED),
        PackedSlice(
            88,
            70,
            9,
            2,
            [
                PackedAppend(
                    Produce("kafka/t/0", 3, Batch(2, 3, b"", 1), Producer("7", 0, 0, 2, 1)),
                    30,
                )
            ],
        ),
    ],
    8,
)

GOLDEN: list[tuple[Command, str]] = [
    (
        Create(
            "docs/a",
            1,
            "application/json",
            1,
            60,
            None,
            True,
            BATCH,
            PRODUCER,
            "s",
            FORK,
            Retention(60, 1000),
        ),
        (
            "dc001001a6646f63732f6101b06170706c69636174696f6e2f6a736f6e013cc0c3980102c405312c32322ccee3069283c4080200"
            "00000300000000000795a1700102ff00a1739ad9206162616261626162616261626162616261626162616261626162616261"
            "626162a6646f63732f61cf00010000000000070309d921303030303030303030303030303030335f30303030303030303030"
            "30303030303900020104933ccd03e8c2c000ff"
        ),
    ),
    (
        Create("docs/a", 1, "text/plain", 0),
        "dc001001a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c0c000ff",
    ),
    (
        Create("docs/a", 1, "text/plain", 0, segments=SegmentLimits(1000, 0, 2)),
        "dc001001a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c093cd03e8000200ff",
    ),
    (
        Create("docs/a", 1, "text/plain", 0, profile=Profile.DISKLESS),
        "dc001001a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c0c001ff",
    ),
    (
        Create("kafka/t/0", 1, "text/plain", 2, producer_id_max=(1 << 47) + 5),
        "dc001001a96b61666b612f742f3001aa746578742f706c61696e02c0c0c2c0c0c0c0c0c000cf0000800000000005",
    ),
    (
        COMMIT,
        (
            "9878b67061636b732f32303236303130312d30302f312d666601d920616261626162616261626162"
            "616261626162616261626162616261626162616203049295183dcee30692830192929902a6646f63"
            "732f6103b06170706c69636174696f6e2f6a736f6e980102c400cee3069283c40000000095a17001"
            "02ff00c0c20005929902a6646f63732f6104a0c0c0c0c30000955846090291929608a96b61666b61"
            "2f742f3003980203c40001c40000000095a13700000201001e08"
        ),
    ),
    (SetProfile("docs/a", Profile.DISKLESS, 5, 7, 2), "9679a6646f63732f6101050702"),
    (SealProfileEpoch("docs/a", 7, 1, 5), "957aa6646f63732f61070105"),
    (Rollover("docs/a", 7, 2, 3, 5), "960aa6646f63732f6107020305"),
    (
        Append("docs/a", 2, "application/json", BATCH, PRODUCER, "s", True, 7),
        (
            "9902a6646f63732f6102b06170706c69636174696f6e2f6a736f6e980102c405312c32322ccee3069283c408020000000300"
            "000000000795a1700102ff00a173c307"
        ),
    ),
    (Append("docs/a", 2, "", None, close=True), "9902a6646f63732f6102a0c0c0c0c300"),
    (
        AppendIf("docs/a", 2, "text/plain", BATCH, PRODUCER, "s", True, 7, 300),
        "9a0fa6646f63732f6102aa746578742f706c61696e980102c405312c32322ccee3069283c408020000000300000000000795a1700102ff00a173c307cd012c",
    ),
    (
        AppendIf("docs/a", 2, "", None, close=True, record=0),
        "9a0fa6646f63732f6102a0c0c0c0c30000",
    ),
    (
        Produce("kafka/t/0", 5, KAFKA_BATCH, Producer("4096", 2, 2**31 - 1, 1, 1), 7),
        "9608a96b61666b612f742f3005980203c4053132333435cee3069283c40000010795a43430393602ce7fffffff010107",
    ),
    (
        Produce("kafka/t/0", 5, KAFKA_BATCH),
        "9608a96b61666b612f742f3005980203c4053132333435cee3069283c400000107c000",
    ),
    (
        MirrorBatch("kafka/t/0", 5, KAFKA_BATCH, None, 7, 300, 301),
        "980ca96b61666b612f742f3005980203c4053132333435cee3069283c400000107c007cd012ccd012d",
    ),
    (
        TxnProduce("kafka/t/0", 5, KAFKA_BATCH, Producer("4096", 2, 0, 2, 1), 7, 3, 9),
        "9877a96b61666b612f742f3005980203c4053132333435cee3069283c40000010795a43430393602000201070309",
    ),
    (
        TxnMarkers(
            7,
            2,
            3,
            True,
            control_batch(7, 2, commit=True, decided_ms=1000),
            [(9, "kafka/t/0")],
            ["g"],
            1001,
        ),
        "9972070203c3c44e0000000000000000000000420000000002a4ad982000300000000000000000000003e800000000000003e800000000000000070002ffffffff000000012000000008000000010c00000000000000919209a96b61666b612f742f3091a167cd03e9",
    ),
    (DecideEntries([(7, 3, 9)], 5), "937b919307030905"),
    (TxnSettle(9, "", 7, 2, 3, False, 1000, 1001), "997609a0070203c2cd03e8cd03e9"),
    (MirrorGap("kafka/t/0", 5, 7, 300, 302, True), "970da96b61666b612f742f300507cd012ccd012ec3"),
    (ProducerIds(1000, 5), "9309cd03e805"),
    (Delete("docs/a", 3, 7), "9403a6646f63732f610307"),
    (Expire("docs/a", 7, 2, 4), "9504a6646f63732f61070204"),
    (Touch([(7, 3), (8, 4)], 5), "93059292070392080405"),
    (Trim([(7, 3, 9), (8, 1, 2)], 5), "94069293070309930801020590"),
    (Trim([(7, 3, 9)], 5, ["docs/a"]), "940691930703090591a6646f63732f61"),
    (TrimTo("docs/a", 7, 4, 9, 5), "960ba6646f63732f6107040905"),
    (
        Evict("packs/20260101-00/1-ff", 9, [(7, 0xE3069283, 80, 5, 0xE3069284)]),
        "9423b67061636b732f32303236303130312d30302f312d666609919507cee30692835005cee3069284",
    ),
    (Return([("docs/a", 7, b"12345")], 9), "93249193a6646f63732f6107c405313233343509"),
    (SetRetention("docs/a", Retention(60), 5, 7), "9507a6646f63732f61933cc0c20507"),
    (SetRetention("docs/a", None, 5), "9507a6646f63732f61c00500"),
    (
        SetAttributes("docs/a", b'{"a":1}', 5, 7, 3),
        "960ea6646f63732f61c4077b2261223a317d050703",
    ),
    (SetAttributes("docs/a", None, 5), "960ea6646f63732f61c00500ff"),
    (
        CreateWithAttributes("docs/a", 1, "text/plain", 0, attributes=b'{"a":1}'),
        "dc001110a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c0c000ffc4077b2261223a317d",
    ),
    (
        PublishSnapshot(
            "docs/a", 7, 3, 9, 8, ((2, 40, 5),), 5, b"d" * 32, "text/plain", "r@1", 2, ["r"], 6
        ),
        "9e11a6646f63732f6107030908919302280505c420"
        + "64" * 32
        + "aa746578742f706c61696ea37240310291a17206",
    ),
    (
        PublishSnapshot("docs/a", 7, 0, 0, 0, (), 0, b"d" * 32, "", "", 2, None, 6),
        "9e11a6646f63732f61070000009000c420" + "64" * 32 + "a0a002c006",
    ),
    (DropSnapshot("docs/a", 7, "", -1, 2, None, 6), "9812a6646f63732f6107a0ff02c006"),
    (
        PinSource("docs/a", "ab", "docs/b", 5, 1, 2, "text/plain", 3, True),
        "9a14a6646f63732f61a26162a6646f63732f62050102aa746578742f706c61696e03c3",
    ),
    (ConfirmPin(7, "ab"), "931507a26162"),
    (Unpin(7, "ab", 6), "941607a2616206"),
    (RefuseAttempt("docs/b", "ab", 7), "9417a6646f63732f62a2616207"),
    (Acknowledge(9), "921809"),
    (AcknowledgeAll([9, 300]), "92199209cd012c"),
    (
        PublishSlices("packs/20260101-00/1-ff", 1, 4, [(7, SLICE)], 8),
        (
            "961eb67061636b732f32303236303130312d30302f312d66660104919207dc001000000205b67061636b732f323032363031"
            "30312d30302f312d6666183dcee3069283080209010203040108"
        ),
    ),
    (
        PackWritten("packs/20260101-00/1-ff", [1, 2], 9),
        "941fb67061636b732f32303236303130312d30302f312d666692010209",
    ),
    (
        ReleasePack("packs/20260101-00/1-ff", 2, 10),
        "9420b67061636b732f32303236303130312d30302f312d6666020a",
    ),
    (
        PageEntries("c/pages/20260101-00/1-ff", 1 << 48 | 7, 3, 9, 0xE3069283, 500, 0xE3069283, 8),
        "9925b8632f70616765732f32303236303130312d30302f312d6666cf00010000000000070309cee3069283cd01f4cee306928308",
    ),
    (
        ReleasePaged("c/pages/20260101-00/1-ff", [("c/packs/20260101-00/1-ff", 2)], 8),
        "9426b8632f70616765732f32303236303130312d30302f312d66669192b8632f7061636b732f32303236303130312d30302f312d66660208",
    ),
    (
        ReplaceSlices("packs/20260101-00/1-ff", 1, 4, [(7, SLICE)], 8),
        "9622b67061636b732f32303236303130312d30302f312d66660104919207dc001000000205b67061636b732f323032363031"
        "30312d30302f312d6666183dcee3069283080209010203040108",
    ),
    (NoteCompaction(7, 100, 9, 3, 90, 4, 8), "9827076409035a0408"),
    (SetCompaction("docs/a", True, 5, 7), "9513a6646f63732f61c30507"),
    (PackDeleted("packs/20260101-00/1-ff"), "9221b67061636b732f32303236303130312d30302f312d6666"),
    (
        SubscriptionPut("s", 14, CONFIG, "http://h:1"),
        "9528a1730e9701a6646f63732f2a91a6646f63732f61a0ac64656661756c742f77616b65cd7530a164aa687474703a2f2f683a31",
    ),
    (
        SubscriptionStreams("s", ["docs/a"], ["docs/b"], 15),
        "9529a17391a6646f63732f6191a6646f63732f620f",
    ),
    (SubscriptionDelete("s", 16), "932aa17310"),
    (SubscriptionLinked("s", 7, 2), "942ba1730702"),
    (
        SubscriptionEvent("s", 7, 2, 17, 3, "w_1", "worker", 18),
        "992ca17307021103a3775f31a6776f726b657212",
    ),
    (
        LinkSubscription("s", 7, 2, "docs/*", "default/wake", ["docs/a"]),
        "972da1730702a6646f63732f2aac64656661756c742f77616b6591a6646f63732f61",
    ),
    (UnlinkSubscription("s", 7), "932ea17307"),
    (AckLinks("s", 7, [("docs/a", 8, 3, 9)]), "942fa173079194a6646f63732f61080309"),
    (
        SubscriptionPutLimited("s", 14, CONFIG, "http://h:1", 5, "default/dead"),
        "9730a1730e9701a6646f63732f2a91a6646f63732f61a0ac64656661756c742f77616b65cd7530a164aa687474703a2f2f68"
        "3a3105ac64656661756c742f64656164",
    ),
    (
        SubscriptionRetry("s", 7, 17, 3, "w_1", "docs/a", 8, 64, 1017, "boom"),
        "9b31a173071103a3775f31a6646f63732f610840cd03f9a4626f6f6d",
    ),
    (ResetLinks("s", 7, [("docs/a", 8, 3, 9)]), "9432a173079194a6646f63732f61080309"),
    (SubscriptionWorker("s", 7, 17, "w", 8, 1017, [3]), "9836a1730711a17708cd03f99103"),
    (ForgetFailure("s", 7, "docs/a"), "9437a17307a6646f63732f61"),
    (TableCreate("all", "docs/", 11), "943ca3616c6ca5646f63732f0b"),
    (TableOpen(3, 12), "933d030c"),
    (TablePlanned(3, 1), "933e0301"),
    (
        TableCommit(3, 1, "ab", "", "", "m1", "d1", 100, 2, 13, "r1"),
        "9c3f0301a26162a0a0a26d31a2643164020da27231",
    ),
    (TableAbandon(3, 1), "93400301"),
    (
        ClaimRanges(3, 1, 0, "docs/", ["docs/long/"], 1 << 30, True),
        "9941030100a5646f63732f91aa646f63732f6c6f6e672fce40000000c390",
    ),
    (
        ClaimRanges(3, 1, 0, "docs/", [], 5, False, [("docs/a", 7, 2, 4)]),
        "9941030100a5646f63732f9005c29194a6646f63732f61070204",
    ),
    (MetaSet("k", b"v"), "9350a16bc40176"),
    (
        TableMake(
            "all", ["default/docs", "docs/"], "docs", True, [("id", "long")], 11, ["day(at)"]
        ),
        (
            "9942a3616c6c92ac64656661756c742f646f6373a5646f63732fa4646f6373c39192a26964a46c6f6e67"
            "0b91a764617928617429a0"
        ),
    ),
    (
        TableMove(3, 2, "a", "m1", "d1", "m2", "d2", -1, "r", [("id", "long")], ["stream"], 17),
        "9d490302a161a26d31a26431a26d32a26432ffa1729192a26964a46c6f6e6791a673747265616d11",
    ),
    (
        TableReplace(3, 2, "a", "m1", "d1", "m2", "d2", -5, 0, 17, "r"),
        "9c4b0302a161a26d31a26431a26d32a26432fb0011a172",
    ),
    (
        TableFail(3, 1, [(7, "docs/a", 2, 4, "packs/x", 24, "damaged")], 12),
        "95430301919707a6646f63732f610204a77061636b732f7818a764616d616765640c",
    ),
    (TableFault(3, 2, "bad", 18), "954a0302a362616412"),
    (TableRetry(3, 13), "9344030d"),
    (WatchStreams(3, ["docs/"], True, 14), "95450391a5646f63732fc30e"),
    (TableAlter(3, "new", True, [("id", "long")], 15), "964603a36e6577c39192a26964a46c6f6e670f"),
    (TableDrop(3, 16), "93470310"),
    (ForgetTable(3, True), "934803c3"),
    (
        MetaChange("access", 3, [("token/a", b"v"), ("jti/b", None)]),
        "9459a6616363657373039292a7746f6b656e2f61c4017692a56a74692f62c0",
    ),
    (BucketRetention("docs", Retention(None, 1000), 9), "9451a4646f637393c0cd03e8c209"),
    (
        ClusterBorn([NODE], [Placement((1, 2, 3), (1, 2, 4), 2, 7)], 3),
        "9452919a04a3683a31a8687474703a2f2f68a17a020103c2a09091949301020393010204020703",
    ),
    (NodeAdd(NODE, True), "93539a04a3683a31a8687474703a2f2f68a17a020103c2a090c3"),
    (NodeSet(4, NodeState.LEAVING), "93540404"),
    (
        NodeAnnounce(4, "h:1", "http://h", "z", 2, "h:9092", (10092, 10093)),
        "985504a3683a31a8687474703a2f2f68a17a02a6683a3930393292cd276ccd276d",
    ),
    (PlaceGroup(1, (1, 2, 4), 2, 7), "955601930102040207"),
    (GroupPlaced(1, (1, 2, 4), 8), "9457019301020408"),
    (SetBalancing(True, 5), "9358c305"),
    (SetLevel(7), "925a07"),
    (ReaderAdd(READER), "925b9a05a3683a32a8687474703a2f2f69a3666172000000c3a090"),
    (NodePromote(4, True), "935c04c3"),
    (
        TopicPut("t", bytes(16), 3, [("k", "v")], 9),
        "9764a174c410" + "00" * 16 + "039192a16ba1760990",
    ),
    (TopicReady("t", bytes(16), 3), "9465a174c410" + "00" * 16 + "03"),
    (
        TopicChange("t", bytes(16), 7, 5, [("k", "v")]),
        "9668a174c410" + "00" * 16 + "07059192a16ba176",
    ),
    (TopicDrop("t", bytes(16)), "9366a174c410" + "00" * 16),
    (TopicGone("t", bytes(16)), "9367a174c410" + "00" * 16),
    (
        ConsumerGroupPut("g", 5, 2, "consumer", "range", "m", [MEMBER]),
        "98cc82a1670502a8636f6e73756d6572a572616e6765a16d9198a16da169a163a22f68cd2710cdea60c40173c40161",
    ),
    (
        ConsumerPut("g", 5, 2, "uniform", [MODERN_MEMBER], ["n"]),
        "97cc88a1670502a7756e69666f726d9198a16da169a163a22f6800cdea60c4199591a174a3752e2a91a66b61666b612fa7756e69666f726dc0c44a960201c29192c41000000000000000000000000000000000919200019192c41000000000000000000000000000000000919201019192c41000000000000000000000000000000000910091a16e",
    ),
    (
        CommitOffsets("g", 5, 2, "m", [OffsetEntry(bytes(16), 3, 7, -1, "x")]),
        "96cc83a1670502a16d9195c41" + "00" * 16 + "00307ffa178",
    ),
    (TxnInit("t", 5, 60_000, 7, 2, 9), "976ea17405cdea60070209"),
    (TxnInit("t", 5, 60_000), "976ea17405cdea60ffff00"),
    (
        TxnAdd("t", 7, 2, 5, [(3, 9, "kafka/t/0")], [(4, "g")], 2),
        "986fa17407020591930309a96b61666b612f742f30919204a16702",
    ),
    (TxnEnd("t", 7, 2, True, 2, 5), "9770a1740702c30205"),
    (TxnExpire("t", 3, 5, True), "9571a1740305c3"),
    (TxnAsk(7, 3, 5), "9474070305"),
    (TxnForget("t", 5), "9375a17405"),
    (TxnHold("b", 7, 5), "947ca1620705"),
    (ConsumerGroupDrop("g"), "92cc84a167"),
    (DropOffsets("g", [(bytes(16), 3)]), "93cc85a1679192c41" + "00" * 16 + "003"),
    (ExpireOffsets("g", 5), "93cc86a16705"),
    (ForgetTopic(bytes(16)), "92cc87c41" + "00" * 16 + "0"),
    (
        TxnOffsets("g", 5, 1 << 47, 2, 3, 4, "m", [OffsetEntry(bytes(16), 3, 7, -1, "x")]),
        "9973a16705cf00008000000000000203" + "04a16d9195c41" + "00" * 16 + "00307ffa178",
    ),
    (
        Bundle([Append("a", 2, "t", BATCH), Append("b", 3, "", None, close=True)]),
        "9263929902a16102a174980102c405312c32322ccee3069283c4080200000003000000000007c0c0c2009902a16203a0c0c0c0c300",
    ),
    (
        AppendAll(
            [
                AppendIf("{a}/a", 2, "t", BATCH, record=3),
                Append("{a}/b", 2, "", None, close=True),
            ]
        ),
        "921a929a0fa57b617d2f6102a174980102c405312c32322ccee3069283c4080200000003000000000007c0c0c200039902a57b617d2f6202a0c0c0c0c300",
    ),
    (
        TxnAppend(
            [
                AppendIf("a", 2, "t", BATCH, incarnation=7, record=3),
                Append("b", 2, "t", BATCH, Producer("p", 1, 2), incarnation=8),
            ],
            5 << 47,
            6,
            9,
        ),
        "951b929a0fa16102a174980102c405312c32322ccee3069283c4080200000003000000000007c0c0c207039902a16202a174980102c405312c32322ccee3069283c408020000000300000000000795a1700102ff00c0c208cf00028000000000000609",
    ),
    (
        Bundle([AppendIf("a", 2, "t", BATCH, record=3), Append("b", 3, "", None, close=True)]),
        "9263929a0fa16102a174980102c405312c32322ccee3069283c4080200000003000000000007c0c0c200039902a16203a0c0c0c0c300",
    ),
    (
        Bundle([Append("b", 3, "", None, close=True), Produce("a", 2, KAFKA_BATCH)]),
        "9263929902a16203a0c0c0c0c3009608a16102980203c4053132333435cee3069283c400000107c000",
    ),
]


@pytest.mark.parametrize(("command", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_are_golden(command: Command, golden: str) -> None:
    assert msgspec.msgpack.encode(command).hex() == golden
    decoded = msgspec.msgpack.decode(bytes.fromhex(golden), type=AnyCommand)
    assert decoded == command
    assert type(decoded) is type(command)


def test_a_node_of_the_release_before_is_no_read_replica() -> None:
    before = bytes.fromhex("93539704a3683a31a8687474703a2f2f68a17a020103c3")
    assert (
        msgspec.msgpack.decode(before, type=AnyCommand) == NodeAdd(NODE, True) and not NODE.reader
    )


def test_every_command_has_golden_bytes() -> None:
    assert set(get_args(AnyCommand)) == {type(command) for command, _ in GOLDEN}


def test_fields_that_a_later_release_appended_are_ignored_and_missing_ones_have_defaults() -> None:
    later = msgspec.msgpack.encode([24, 5, "of a later release"])
    assert msgspec.msgpack.decode(later, type=AnyCommand) == Acknowledge(5)
    earlier = msgspec.msgpack.encode([20, "docs/a", "attempt", "docs/b", 1])
    assert msgspec.msgpack.decode(earlier, type=AnyCommand) == PinSource(
        "docs/a", "attempt", "docs/b", 1
    )


def test_what_the_first_release_wrote_is_read() -> None:
    """Read data of the first release: its creations had no retention, its forks no first kept
    record."""
    data = (
        "9c01a6646f63732f6101b06170706c69636174696f6e2f6a736f6e013cc0c3980102c405312c32322ccee3069283c4080200"
        "00000300000000000795a1700102ff00a17398d9206162616261626162616261626162616261626162616261626162616261"
        "626162a6646f63732f61cf00010000000000070309d921303030303030303030303030303030335f30303030303030303030"
        "3030303030390002"
    )
    earlier = msgspec.structs.replace(FORK, first_record=0, first_byte=0)
    expected = Create(
        "docs/a", 1, "application/json", 1, 60, None, True, BATCH, PRODUCER, "s", earlier
    )
    assert msgspec.msgpack.decode(bytes.fromhex(data), type=AnyCommand) == expected


def test_retentions_of_a_log_below_level_3_are_read() -> None:
    before = bytes.fromhex("9507a6646f63732f61923cc00507")
    command = SetRetention("docs/a", Retention(60), 5, 7)
    assert msgspec.msgpack.decode(before, type=AnyCommand) == command
    assert level_for(command) == 1
    by_record_time = Retention(60, record_time=True)
    assert level_for(SetRetention("docs/a", by_record_time, 5)) == 3
    assert level_for(BucketRetention("docs", by_record_time, 5)) == 3
    assert level_for(Create("docs/a", 1, "", 0, retention=by_record_time)) == 3


def test_creates_before_segments_are_read() -> None:
    before = bytes.fromhex("9d01a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c0")
    command = Create("docs/a", 1, "text/plain", 0)
    assert msgspec.msgpack.decode(before, type=AnyCommand) == command
    assert level_for(command) == 1
    assert level_for(Create("docs/a", 1, "", 0, segments=SegmentLimits(0, 0))) == 3
    with_segments = bytes.fromhex("9e01a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c0c0")
    assert msgspec.msgpack.decode(with_segments, type=AnyCommand) == command
    assert level_for(Create("docs/a", 1, "", 0, profile=Profile.DISKLESS)) == 3
    with_profile = bytes.fromhex("9f01a6646f63732f6101aa746578742f706c61696e00c0c0c2c0c0c0c0c0c000")
    assert msgspec.msgpack.decode(with_profile, type=AnyCommand) == command
    assert level_for(Create("docs/a", 1, "", 0, producer_id_max=7)) == 3


def test_a_table_over_a_table_needs_level_4() -> None:
    for transform, level in {
        "": 3,
        "sql:select 1": 3,
        str(Transform("sql:x", table="7")): 4,
    }.items():
        made = TableMake("d", ["a/"], "a/", False, [], 1, transform=transform)
        assert level_for(made) == level


def test_slices_of_a_log_below_level_3_are_read() -> None:
    data = (
        "961eb67061636b732f32303236303130312d30302f312d666601049192079900000205b67061636b732f3230323630313031"
        "2d30302f312d6666183dcee30692830808"
    )
    cold = ColdSlice(0, 0, 2, 5, "packs/20260101-00/1-ff", 24, 61, 0xE3069283, 8)
    command = PublishSlices("packs/20260101-00/1-ff", 1, 4, [(7, cold)], 8)
    assert msgspec.msgpack.decode(bytes.fromhex(data), type=AnyCommand) == command
    assert level_for(command) == 1
    later = PublishSlices("packs/20260101-00/1-ff", 1, 4, [(7, cold), (7, SLICE)], 8)
    assert level_for(later) == 3
    assert level_for(ReplaceSlices("packs/20260101-00/1-ff", 1, 4, [(7, SLICE)], 8)) == 3


def test_levels_are_those_of_commands() -> None:
    """List levels by tag, so that a class can be renamed."""
    kinds = [
        *Command.__subclasses__(),
        *Append.__subclasses__(),
        *Create.__subclasses__(),
        *Produce.__subclasses__(),
    ]
    raised = {kind: level_of(kind) for kind in kinds if level_of(kind) > 1}
    assert raised == {
        Evict: 2,
        Return: 2,
        ReaderAdd: 2,
        NodePromote: 2,
        Bundle: 2,
        AppendIf: 4,
        AppendAll: 4,
        TxnAppend: 4,
        SetAttributes: 4,
        CreateWithAttributes: 4,
        PublishSnapshot: 4,
        DropSnapshot: 4,
        PageEntries: 3,
        ReleasePaged: 3,
        Produce: 3,
        ProducerIds: 3,
        Rollover: 3,
        **dict.fromkeys((TopicPut, TopicReady, TopicDrop, TopicGone, TopicChange), 3),
        **dict.fromkeys(
            (
                TableMake,
                TableFail,
                TableRetry,
                WatchStreams,
                TableAlter,
                TableDrop,
                ForgetTable,
                TableMove,
                TableFault,
            ),
            3,
        ),
        **dict.fromkeys(
            (
                ConsumerGroupPut,
                CommitOffsets,
                ConsumerGroupDrop,
                DropOffsets,
                ExpireOffsets,
                ForgetTopic,
            ),
            3,
        ),
        **dict.fromkeys((CommitSlices, SetProfile, SealProfileEpoch), 3),
        ConsumerPut: 4,
        TrimTo: 4,
        TxnOffsets: 4,
        MirrorBatch: 4,
        MirrorGap: 4,
        TxnProduce: 4,
        TxnMarkers: 4,
        TxnSettle: 4,
        DecideEntries: 4,
        NoteCompaction: 4,
        SetCompaction: 4,
        SubscriptionPutLimited: 4,
        SubscriptionRetry: 4,
        TableReplace: 4,
        AcknowledgeAll: 4,
        **dict.fromkeys((TxnInit, TxnAdd, TxnEnd, TxnExpire, TxnAsk, TxnForget, TxnHold), 4),
        ResetLinks: 4,
        SubscriptionWorker: 4,
        ForgetFailure: 4,
    }
    assert {tag_of(kind) for kind in kinds} >= LEVELS.keys()


def test_a_release_without_conditions_refuses_an_append_with_one() -> None:
    """Refuse a conditional append in an older release: it must not pass as an `Append`, alone or
    in a bundle or pack."""
    command = AppendIf("docs/a", 2, "text/plain", BATCH, record=3)
    known = Append | Produce
    with pytest.raises(msgspec.ValidationError, match="15"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=known)
    with pytest.raises(msgspec.ValidationError, match="15"):
        msgspec.msgpack.decode(msgspec.msgpack.encode([command]), type=list[known])


def test_what_contains_a_condition_needs_its_level() -> None:
    """An older node would apply it without the condition, or fail."""
    bare = AppendIf("docs/a", 4, "", None, close=True, record=3)
    plain = Append("docs/a", 4, "", None, close=True)
    assert level_for(bare) == level_for(Bundle([plain, bare])) == 4
    assert level_for(Bundle([plain])) == 2
    part = PackedSlice(0, 0, 0, 0, [PackedAppend(plain), PackedAppend(bare)])
    assert level_for(COMMIT) == 3
    assert level_for(structs.replace(COMMIT, slices=[*COMMIT.slices, part])) == 4


def test_what_names_a_compressed_slice_needs_its_level() -> None:
    """An older node would refuse to read the slice."""
    slices = [(1, structs.replace(SLICE, flags=flags, encoding=0)) for flags in (3, 3 | COMPRESSED)]
    assert level_for(PublishSlices("p", 1, 1, slices[:1])) == 3
    assert level_for(PublishSlices("p", 1, 1, slices)) == 4
    assert level_for(ReplaceSlices("p", 1, 1, slices)) == 4
    assert describe_fault(slices[1][1]) == ""
    assert describe_fault(structs.replace(SLICE, flags=32))
    part = PackedSlice(24, 61, 7, 16 + 1, PACKED)
    assert (part.is_compressed, part.of_batches) == (True, 1)
    assert level_for(structs.replace(COMMIT, slices=[part])) == 4
    assert describe_fault(part) == ""
    for wrong in (3, 15, 19, 32):
        assert describe_fault(structs.replace(part, encoding=wrong))
