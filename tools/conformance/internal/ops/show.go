package ops

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	// The registry must know every service that is called by name.
	_ "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// shownBytes bounds how much of a long field is printed.
const shownBytes = 48

// NewReply makes an empty reply of the type that a method returns, or an empty message for an unknown method.
func NewReply(method string) proto.Message {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	if !name.IsValid() {
		return &emptypb.Empty{}
	}
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return &emptypb.Empty{}
	}
	m, ok := descriptor.(protoreflect.MethodDescriptor)
	if !ok {
		return &emptypb.Empty{}
	}
	messageType, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return &emptypb.Empty{}
	}
	return messageType.New().Interface()
}

// Show prints a message on one line, long fields abbreviated.
func Show(m proto.Message) string {
	return strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(trim(m))), " ")
}

// ShowLines prints a message on many lines, long fields abbreviated.
func ShowLines(m proto.Message) []string {
	text := prototext.MarshalOptions{Multiline: true, Indent: "  "}.Format(trim(m))
	var lines []string
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		// prototext doubles spaces at random so that nobody relies on its exact form.
		indent := len(line) - len(strings.TrimLeft(line, " "))
		lines = append(lines, line[:indent]+strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// trim copies a message and cuts its long byte fields.
func trim(m proto.Message) proto.Message {
	if m == nil {
		return &emptypb.Empty{}
	}
	out := proto.Clone(m)
	trimFields(out.ProtoReflect())
	return out
}

func trimFields(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsList() && field.Kind() == protoreflect.MessageKind:
			for i := range value.List().Len() {
				trimFields(value.List().Get(i).Message())
			}
		case field.IsList() || field.IsMap():
		case field.Kind() == protoreflect.MessageKind:
			trimFields(value.Message())
		case field.Kind() == protoreflect.BytesKind && len(value.Bytes()) > shownBytes:
			m.Set(field, protoreflect.ValueOfBytes([]byte(abbreviateText(value.Bytes()))))
		}
		return true
	})
}

func abbreviateText(b []byte) string {
	return fmt.Sprintf("%s…(%d bytes, sum %08x)", b[:shownBytes/2], len(b), sum(b))
}

func sum(b []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range b {
		h = (h ^ uint32(c)) * 16777619
	}
	return h
}

func abbreviate(b []byte) string {
	if len(b) > shownBytes {
		return fmt.Sprintf("%x… (%d bytes)", b[:shownBytes], len(b))
	}
	return fmt.Sprintf("%x", b)
}
