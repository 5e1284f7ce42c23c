"""All commands of a group's log, as one type that a decoder takes."""

from __future__ import annotations

from polynya.stream.commands import (
    AckLinks,
    Acknowledge,
    Append,
    AppendIf,
    BucketRetention,
    Bundle,
    ClaimRanges,
    ClusterBorn,
    ConfirmPin,
    Create,
    Delete,
    Evict,
    Expire,
    GroupPlaced,
    LinkSubscription,
    MetaChange,
    MetaSet,
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeSet,
    PackDeleted,
    PackWritten,
    PageEntries,
    PinSource,
    PlaceGroup,
    Produce,
    ProducerIds,
    PublishSlices,
    ReaderAdd,
    RefuseAttempt,
    ReleasePack,
    ReleasePaged,
    ReplaceSlices,
    Return,
    Rollover,
    SetBalancing,
    SetLevel,
    SetRetention,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionStreams,
    TableAbandon,
    TableCommit,
    TableCreate,
    TableOpen,
    TablePlanned,
    TopicChange,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
    Touch,
    Trim,
    TrimTo,
    UnlinkSubscription,
    Unpin,
)
from polynya.stream.diskless_commands import CommitSlices, SealProfileEpoch, SetProfile
from polynya.stream.group_commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
)
from polynya.stream.table_commands import (
    ForgetTable,
    TableAlter,
    TableDrop,
    TableFail,
    TableFault,
    TableMake,
    TableMove,
    TableRetry,
    WatchStreams,
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
