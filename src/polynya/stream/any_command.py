"""All commands of a group's log, as one type that a decoder takes."""

from __future__ import annotations

from polynya.stream.features.appends.commands import Append, AppendIf, Bundle, Produce, ProducerIds
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
)
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import Create, Delete, Expire, Touch
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
    NodeSet,
    PlaceGroup,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.features.profiles.commands import CommitSlices, SealProfileEpoch, SetProfile
from polynya.stream.features.retention.commands import BucketRetention, SetRetention, Trim, TrimTo
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.settings.commands import MetaChange, MetaSet, SetLevel
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionStreams,
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

AnyCommand = (
    Create
    | Append
    | AppendIf
    | Delete
    | Expire
    | Touch
    | Trim
    | TrimTo
    | SetRetention
    | Rollover
    | Produce
    | ProducerIds
    | PinSource
    | ConfirmPin
    | Unpin
    | RefuseAttempt
    | Acknowledge
    | PublishSlices
    | PackWritten
    | ReleasePack
    | PackDeleted
    | ReplaceSlices
    | PageEntries
    | ReleasePaged
    | Evict
    | Return
    | SubscriptionPut
    | SubscriptionStreams
    | SubscriptionDelete
    | SubscriptionLinked
    | SubscriptionEvent
    | LinkSubscription
    | UnlinkSubscription
    | AckLinks
    | TableCreate
    | TableOpen
    | TablePlanned
    | TableCommit
    | TableAbandon
    | ClaimRanges
    | TableMake
    | TableFail
    | TableRetry
    | WatchStreams
    | TableAlter
    | TableDrop
    | TableMove
    | TableFault
    | ForgetTable
    | MetaSet
    | BucketRetention
    | ClusterBorn
    | NodeAdd
    | NodeSet
    | NodeAnnounce
    | PlaceGroup
    | GroupPlaced
    | SetBalancing
    | MetaChange
    | SetLevel
    | ReaderAdd
    | NodePromote
    | TopicChange
    | TopicPut
    | TopicReady
    | TopicDrop
    | TopicGone
    | ConsumerGroupPut
    | CommitOffsets
    | ConsumerGroupDrop
    | DropOffsets
    | ExpireOffsets
    | ForgetTopic
    | CommitSlices
    | SetProfile
    | SealProfileEpoch
    | Bundle
)
