package ops

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"garboard/tools/conformance/internal/client"
)

// BadToken stands for a token that no server has given.
const BadToken = "?"

// withToken adds the token that the server has given to a user, if it has.
func withToken(ctx context.Context, side *client.Side, user string) context.Context {
	switch user {
	case "":
		return ctx
	case BadToken:
		return metadata.AppendToOutgoingContext(ctx, "token", "bad.token")
	}
	if token := side.Token(user); token != "" {
		return metadata.AppendToOutgoingContext(ctx, "token", token)
	}
	return ctx
}

// WatchOnce opens a stream under a user, creates a watch and keeps the first response.
type WatchOnce struct {
	Req  *pb.WatchCreateRequest
	User string
}

// Describe implements Op.
func (w *WatchOnce) Describe() string {
	return fmt.Sprintf("Watch create as %q %s", w.User, Show(w.Req))
}

// Run implements Op.
func (w *WatchOnce) Run(ctx context.Context, side *client.Side) Outcome {
	ctx, cancel := context.WithCancel(withToken(ctx, side, w.User))
	defer cancel()
	stream, err := pb.NewWatchClient(side.Conn).Watch(ctx)
	if err != nil {
		return failed(err)
	}
	create := &pb.WatchRequest_CreateRequest{CreateRequest: w.Req}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: create}); err != nil {
		return failed(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return failed(err)
	}
	return Outcome{Replies: []proto.Message{resp}}
}

// LoneKeepAlive renews a lease once, on a stream of its own under a user.
type LoneKeepAlive struct {
	ID   int64
	User string
}

// Describe implements Op.
func (k *LoneKeepAlive) Describe() string {
	return fmt.Sprintf("LeaseKeepAlive as %q ID:%d", k.User, k.ID)
}

// Run implements Op.
func (k *LoneKeepAlive) Run(ctx context.Context, side *client.Side) Outcome {
	ctx, cancel := context.WithCancel(withToken(ctx, side, k.User))
	defer cancel()
	stream, err := pb.NewLeaseClient(side.Conn).LeaseKeepAlive(ctx)
	if err != nil {
		return failed(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: k.ID}); err != nil {
		return failed(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return failed(err)
	}
	return Outcome{Replies: []proto.Message{resp}}
}
