// Package ops holds the operations that are applied to both servers, and what a server answered to one.
package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"garboard/tools/conformance/internal/client"
)

// Outcome is everything that a server answered to one operation.
type Outcome struct {
	Replies []proto.Message
	Code    codes.Code
	Text    string
	// Notes are broken rules within one answer, such as a header on a chunk that must not carry one.
	Notes []string
}

// OK tells whether the operation succeeded.
func (o *Outcome) OK() bool { return o.Code == codes.OK }

// Op is one operation.
type Op interface {
	// Describe names the operation and shows its request.
	Describe() string
	// Run applies the operation to one server.
	Run(ctx context.Context, side *client.Side) Outcome
}

// MethodOf is the full name of the gRPC method that an operation calls.
func MethodOf(op Op) string {
	switch o := op.(type) {
	case *Unary:
		return o.Method
	case *Raw:
		return o.Method
	case *RangeStream:
		return pb.KV_RangeStream_FullMethodName
	case *KeepAlive, *LoneKeepAlive:
		return pb.Lease_LeaseKeepAlive_FullMethodName
	case *WatchOnce:
		return pb.Watch_Watch_FullMethodName
	case Snapshot:
		return pb.Maintenance_Snapshot_FullMethodName
	case *Health:
		return healthpb.Health_Check_FullMethodName
	}
	panic(fmt.Sprintf("an operation of an unknown kind: %T", op))
}

func failed(err error) Outcome {
	if err == nil {
		return Outcome{}
	}
	st, _ := status.FromError(err)
	if errors.Is(err, context.DeadlineExceeded) {
		st = status.New(codes.DeadlineExceeded, err.Error())
	}
	return Outcome{Code: st.Code(), Text: st.Message()}
}

// Unary is a unary call with a well-formed request.
type Unary struct {
	Method string
	Req    proto.Message
	// Gzip compresses the request.
	Gzip bool
	// Metadata is sent along, as key, value, key, value.
	Metadata []string
	// User has its token sent along.
	User string
}

// Describe implements Op.
func (u *Unary) Describe() string {
	var extra string
	if u.Gzip {
		extra += " (gzip)"
	}
	if len(u.Metadata) > 0 {
		extra += fmt.Sprintf(" (metadata %q)", u.Metadata)
	}
	if u.User != "" {
		extra += fmt.Sprintf(" (as %s)", u.User)
	}
	return short(u.Method) + extra + " " + Show(u.Req)
}

// Run implements Op.
func (u *Unary) Run(ctx context.Context, side *client.Side) Outcome {
	resp := NewReply(u.Method)
	var opts []grpc.CallOption
	if u.Gzip {
		opts = append(opts, grpc.UseCompressor("gzip"))
	}
	if len(u.Metadata) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, u.Metadata...)
	}
	ctx = withToken(ctx, side, u.User)
	if err := side.Invoke(ctx, u.Method, native(side, u.Req), resp, opts...); err != nil {
		return failed(err)
	}
	if login, ok := resp.(*pb.AuthenticateResponse); ok {
		side.SetToken(u.Req.(*pb.AuthenticateRequest).Name, login.Token)
	}
	return Outcome{Replies: []proto.Message{resp}}
}

// native replaces what names the oracle's own ids by what names this side's.
func native(side *client.Side, req proto.Message) proto.Message {
	switch r := req.(type) {
	case *pb.LeaseRevokeRequest:
		return &pb.LeaseRevokeRequest{ID: side.Native(r.ID)}
	case *pb.LeaseTimeToLiveRequest:
		return &pb.LeaseTimeToLiveRequest{ID: side.Native(r.ID), Keys: r.Keys}
	case *pb.AlarmRequest:
		return &pb.AlarmRequest{Action: r.Action, Alarm: r.Alarm, MemberID: memberID(side, r.MemberID)}
	case *pb.MoveLeaderRequest:
		return &pb.MoveLeaderRequest{TargetID: memberID(side, r.TargetID)}
	case *pb.MemberPromoteRequest:
		return &pb.MemberPromoteRequest{ID: memberID(side, r.ID)}
	case *pb.MemberRemoveRequest:
		return &pb.MemberRemoveRequest{ID: memberID(side, r.ID)}
	case *pb.MemberUpdateRequest:
		return &pb.MemberUpdateRequest{ID: memberID(side, r.ID), PeerURLs: peerURLs(side, r.PeerURLs)}
	case *pb.MemberAddRequest:
		return &pb.MemberAddRequest{PeerURLs: peerURLs(side, r.PeerURLs), IsLearner: r.IsLearner}
	}
	return req
}

// SelfMember stands for the id of the member that is asked.
const SelfMember = ^uint64(0)

// LearnerMember stands for the id of the learner that was added last: an alias of the id the server picked.
const LearnerMember = ^uint64(1)

// SelfPeerURL stands for the peer URL of the member that is asked.
const SelfPeerURL = "self"

func memberID(side *client.Side, id uint64) uint64 {
	switch id {
	case SelfMember:
		return side.MemberID
	case LearnerMember:
		var learner = LearnerMember
		return uint64(side.Native(int64(learner)))
	}
	return id
}

func peerURLs(side *client.Side, urls []string) []string {
	var out []string
	for _, u := range urls {
		if u == SelfPeerURL {
			u = side.PeerURL
		}
		out = append(out, u)
	}
	return out
}

// RangeStream reads a range as a stream and joins the chunks to one reply.
type RangeStream struct {
	Req *pb.RangeRequest
	// User has its token sent along.
	User string
}

// Describe implements Op.
func (r *RangeStream) Describe() string {
	if r.User != "" {
		return fmt.Sprintf("RangeStream as %q %s", r.User, Show(r.Req))
	}
	return "RangeStream " + Show(r.Req)
}

// Run implements Op.
func (r *RangeStream) Run(ctx context.Context, side *client.Side) Outcome {
	stream, err := pb.NewKVClient(side.Conn).RangeStream(withToken(ctx, side, r.User), r.Req)
	if err != nil {
		return failed(err)
	}
	joined := &pb.RangeResponse{}
	var notes []string
	var chunks int
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return failed(err)
		}
		chunks++
		part := chunk.GetRangeResponse()
		if joined.Header != nil {
			notes = append(notes, "a chunk follows the one with the header")
		}
		if part.GetHeader() == nil && (part.GetCount() != 0 || part.GetMore()) {
			notes = append(notes, "count or more outside the last chunk")
		}
		joined.Header = part.GetHeader()
		joined.Kvs = append(joined.Kvs, part.GetKvs()...)
		joined.More = part.GetMore()
		joined.Count = part.GetCount()
	}
	if joined.Header == nil {
		notes = append(notes, "no chunk with a header")
	}
	if r.Req.CountOnly && chunks != 1 {
		notes = append(notes, "count_only must be one message")
	}
	return Outcome{Replies: []proto.Message{joined}, Notes: notes}
}

// KeepAlive renews a lease on a stream that stays open.
type KeepAlive struct{ ID int64 }

// Describe implements Op.
func (k *KeepAlive) Describe() string { return fmt.Sprintf("LeaseKeepAlive ID:%d", k.ID) }

// Run implements Op.
func (k *KeepAlive) Run(ctx context.Context, side *client.Side) Outcome {
	resp, err := side.KeepAlive(ctx, side.Native(k.ID))
	if err != nil {
		return failed(err)
	}
	return Outcome{Replies: []proto.Message{resp}}
}

// Raw is a call with any bytes to any method.
type Raw struct {
	Method  string
	Payload []byte
	// Label says what is wrong with it.
	Label string
	// Stream makes it a server-streaming call, or a bidirectional one.
	Stream bool
	// NoMessage half-closes without a message.
	NoMessage bool
}

// Describe implements Op.
func (r *Raw) Describe() string {
	return fmt.Sprintf("raw %s (%s) %s", r.Method, r.Label, abbreviate(r.Payload))
}

// Run implements Op.
func (r *Raw) Run(ctx context.Context, side *client.Side) Outcome {
	codec := grpc.ForceCodec(client.RawCodec{})
	if !r.Stream {
		var reply []byte
		if err := side.Conn.Invoke(ctx, r.Method, r.Payload, &reply, codec); err != nil {
			return failed(err)
		}
		return Outcome{Replies: parse(r.Method, reply)}
	}
	stream, err := side.Conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, r.Method, codec)
	if err != nil {
		return failed(err)
	}
	if !r.NoMessage {
		// A send to a stream that has already ended fails with EOF; the status comes from the receive.
		stream.SendMsg(r.Payload)
		stream.CloseSend()
	} else {
		stream.CloseSend()
	}
	var out Outcome
	for {
		var reply []byte
		err := stream.RecvMsg(&reply)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			f := failed(err)
			f.Replies = out.Replies
			return f
		}
		out.Replies = append(out.Replies, parse(r.Method, reply)...)
	}
}

func parse(method string, reply []byte) []proto.Message {
	resp := NewReply(method)
	if err := proto.Unmarshal(reply, resp); err != nil {
		return []proto.Message{&emptypb.Empty{}}
	}
	return []proto.Message{resp}
}

// Snapshot streams the database; only its shape is kept, because the bytes are each server's own.
type Snapshot struct{}

// Describe implements Op.
func (Snapshot) Describe() string { return "Snapshot" }

// Run implements Op.
func (Snapshot) Run(ctx context.Context, side *client.Side) Outcome {
	stream, err := pb.NewMaintenanceClient(side.Conn).Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		return failed(err)
	}
	var last *pb.SnapshotResponse
	var total, sawRemaining uint64
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return failed(err)
		}
		if sawRemaining = part.RemainingBytes; len(part.Blob) > 32*1024 {
			return Outcome{Notes: []string{"a chunk over 32 KiB"}}
		}
		total += uint64(len(part.Blob))
		last = part
	}
	out := Outcome{Replies: []proto.Message{&pb.SnapshotResponse{}}}
	if last == nil || len(last.Blob) != 32 || sawRemaining != 0 || total%512 != 32 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d bytes do not end in a 32-byte digest after whole sectors", total))
	}
	return out
}

// Health asks the gRPC health service.
type Health struct{ Service string }

// Describe implements Op.
func (h *Health) Describe() string { return fmt.Sprintf("Health.Check service:%q", h.Service) }

// Run implements Op.
func (h *Health) Run(ctx context.Context, side *client.Side) Outcome {
	resp, err := healthpb.NewHealthClient(side.Conn).Check(ctx, &healthpb.HealthCheckRequest{Service: h.Service})
	if err != nil {
		return failed(err)
	}
	return Outcome{Replies: []proto.Message{resp}}
}

// Varint is a protobuf field with a varint value, for hand-made messages.
func Varint(field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
}

// Bytes is a protobuf field with a bytes value, for hand-made messages.
func Bytes(field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), value)
}

func short(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// Message is a protobuf message.
type Message = proto.Message
