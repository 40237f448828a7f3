"""Files of Protobuf, built without a compiler: fields are written as in .proto files."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

Fields = Mapping[str, str]
"""Types by name: `int64`, `repeated string`, `optional int32`, `oneof string`, `map string int32`, `.shop.Order`."""


def file_of(
    messages: Mapping[str, Fields], *, package: str = "shop", name: str = "shop.proto", imports: tuple[str, ...] = ()
) -> FileDescriptorProto:
    """A file of proto3; a message of another one is `Outer.Inner`, an enumeration `enum Name`."""
    file = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    made: dict[str, DescriptorProto] = {}
    for path, fields in messages.items():
        if path.startswith("enum "):
            values = file.enum_type.add(name=path.removeprefix("enum ")).value
            for word, value in fields.items():
                values.add(name=word, number=int(value))
            continue
        outer, _, inner = path.rpartition(".")
        message = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        made[path] = message
        for number, (field, kind) in enumerate(fields.items(), start=1):
            _add(message, field, kind.split(), number, f".{package}.{path}")
    return file


def _add(message: DescriptorProto, name: str, words: list[str], number: int, path: str) -> None:
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if words[0] == "repeated":
        field.label = FieldDescriptorProto.LABEL_REPEATED
    elif words[0] in {"optional", "oneof"}:
        field.oneof_index = len(message.oneof_decl)
        field.proto3_optional = words[0] == "optional"
        message.oneof_decl.add(name=f"_{name}")
    elif words[0] == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add(entry, "key", words[1:2], 1, path)
        _add(entry, "value", words[2:3], 2, path)
        field.label, words = FieldDescriptorProto.LABEL_REPEATED, [f"{path}.{entry.name}"]
    kind = words[-1]
    if kind.startswith("enum:"):
        field.type, field.type_name = FieldDescriptorProto.TYPE_ENUM, kind.removeprefix("enum:")
    elif kind.startswith("."):
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")


def message_class(files: list[FileDescriptorProto], name: str) -> Any:
    """The class of a message, as a producer has it; files after those that they import."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
