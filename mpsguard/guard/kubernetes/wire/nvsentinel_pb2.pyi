import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecommendedAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[RecommendedAction]

class ProcessingStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNSPECIFIED: _ClassVar[ProcessingStrategy]
    EXECUTE_REMEDIATION: _ClassVar[ProcessingStrategy]
    STORE_ONLY: _ClassVar[ProcessingStrategy]
NONE: RecommendedAction
UNSPECIFIED: ProcessingStrategy
EXECUTE_REMEDIATION: ProcessingStrategy
STORE_ONLY: ProcessingStrategy

class HealthEvents(_message.Message):
    __slots__ = ("version", "events")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    events: _containers.RepeatedCompositeFieldContainer[HealthEvent]
    def __init__(self, version: _Optional[int] = ..., events: _Optional[_Iterable[_Union[HealthEvent, _Mapping]]] = ...) -> None: ...

class HealthEvent(_message.Message):
    __slots__ = ("version", "agent", "component_class", "check_name", "is_fatal", "is_healthy", "message", "recommended_action", "error_code", "entities_impacted", "metadata", "generated_timestamp", "node_name", "processing_strategy")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_CLASS_FIELD_NUMBER: _ClassVar[int]
    CHECK_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_FATAL_FIELD_NUMBER: _ClassVar[int]
    IS_HEALTHY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_ACTION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_IMPACTED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    version: int
    agent: str
    component_class: str
    check_name: str
    is_fatal: bool
    is_healthy: bool
    message: str
    recommended_action: RecommendedAction
    error_code: _containers.RepeatedScalarFieldContainer[str]
    entities_impacted: _containers.RepeatedCompositeFieldContainer[Entity]
    metadata: _containers.ScalarMap[str, str]
    generated_timestamp: _timestamp_pb2.Timestamp
    node_name: str
    processing_strategy: ProcessingStrategy
    def __init__(self, version: _Optional[int] = ..., agent: _Optional[str] = ..., component_class: _Optional[str] = ..., check_name: _Optional[str] = ..., is_fatal: _Optional[bool] = ..., is_healthy: _Optional[bool] = ..., message: _Optional[str] = ..., recommended_action: _Optional[_Union[RecommendedAction, str]] = ..., error_code: _Optional[_Iterable[str]] = ..., entities_impacted: _Optional[_Iterable[_Union[Entity, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., generated_timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node_name: _Optional[str] = ..., processing_strategy: _Optional[_Union[ProcessingStrategy, str]] = ...) -> None: ...

class Entity(_message.Message):
    __slots__ = ("entity_type", "entity_value")
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENTITY_VALUE_FIELD_NUMBER: _ClassVar[int]
    entity_type: str
    entity_value: str
    def __init__(self, entity_type: _Optional[str] = ..., entity_value: _Optional[str] = ...) -> None: ...
