// Package client is one connection to one server, with nothing between the caller and the generated stubs.
package client

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // for compressed requests
	"google.golang.org/protobuf/proto"
)

// Side is one of the two servers that are compared.
type Side struct {
	// Name is "oracle" or "subject".
	Name string
	Conn *grpc.ClientConn
	// ClusterID and MemberID are the server's own, for masking.
	ClusterID, MemberID uint64
	// ClientURL, PeerURL and MemberName are what the server was started with.
	ClientURL, PeerURL, MemberName string

	aliasMu sync.RWMutex
	// aliases maps ids that this server picked to the ids that the oracle picked for the same request.
	aliases map[int64]int64
	// natives is the inverse of aliases.
	natives map[int64]int64
	// tokens maps users to what the server gave them.
	tokens map[string]string

	keepAliveMu sync.Mutex
	keepAlive   pb.Lease_LeaseKeepAliveClient
}

// NewSide is a side without a connection.
func NewSide(name string, clusterID, memberID uint64) *Side {
	return &Side{
		Name: name, ClusterID: clusterID, MemberID: memberID, aliases: map[int64]int64{}, natives: map[int64]int64{},
		tokens: map[string]string{},
	}
}

// Dial connects to a server and learns its ids.
func Dial(ctx context.Context, name, addr string) (*Side, error) {
	s := NewSide(name, 0, 0)
	if err := s.Redial(ctx, addr); err != nil {
		return nil, err
	}
	return s, nil
}

// Redial connects to a server that was started again.
func (s *Side) Redial(ctx context.Context, addr string) error {
	if s.Conn != nil {
		s.Conn.Close()
	}
	s.keepAliveMu.Lock()
	s.keepAlive = nil
	s.keepAliveMu.Unlock()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<20),
		grpc.WithInitialConnWindowSize(4<<20),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		))
	if err != nil {
		return err
	}
	s.Conn = conn
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("%s: status: %w", s.Name, err)
	}
	s.ClusterID, s.MemberID = status.Header.ClusterId, status.Header.MemberId
	return nil
}

// Close ends the connection.
func (s *Side) Close() { s.Conn.Close() }

// AddAlias records that this server picked native where the oracle picked alias.
func (s *Side) AddAlias(native, alias int64) {
	s.aliasMu.Lock()
	defer s.aliasMu.Unlock()
	s.aliases[native] = alias
	s.natives[alias] = native
}

// Alias translates an id of this server to the oracle's.
func (s *Side) Alias(native int64) int64 {
	s.aliasMu.RLock()
	defer s.aliasMu.RUnlock()
	if alias, ok := s.aliases[native]; ok {
		return alias
	}
	return native
}

// Native translates an id of the oracle to this server's.
func (s *Side) Native(alias int64) int64 {
	s.aliasMu.RLock()
	defer s.aliasMu.RUnlock()
	if native, ok := s.natives[alias]; ok {
		return native
	}
	return alias
}

// SetToken keeps the token that the server gave to a user.
func (s *Side) SetToken(user, token string) {
	s.aliasMu.Lock()
	defer s.aliasMu.Unlock()
	s.tokens[user] = token
}

// Token is what the server gave to a user last, or empty.
func (s *Side) Token(user string) string {
	s.aliasMu.RLock()
	defer s.aliasMu.RUnlock()
	return s.tokens[user]
}

// KeepAlive renews a lease over a stream that stays open between calls.
func (s *Side) KeepAlive(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	s.keepAliveMu.Lock()
	defer s.keepAliveMu.Unlock()
	if s.keepAlive == nil {
		stream, err := pb.NewLeaseClient(s.Conn).LeaseKeepAlive(context.Background())
		if err != nil {
			return nil, err
		}
		s.keepAlive = stream
	}
	stream := s.keepAlive
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil && err != io.EOF {
		s.keepAlive = nil
		return nil, err
	}
	type reply struct {
		resp *pb.LeaseKeepAliveResponse
		err  error
	}
	got := make(chan reply, 1)
	go func() {
		resp, err := stream.Recv()
		got <- reply{resp, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			s.keepAlive = nil
		}
		return r.resp, r.err
	case <-ctx.Done():
		s.keepAlive = nil
		return nil, ctx.Err()
	}
}

// RawCodec sends and receives message bytes as they are.
type RawCodec struct{}

// Marshal passes bytes through.
func (RawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

// Unmarshal passes bytes through.
func (RawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Name keeps the content type that servers expect.
func (RawCodec) Name() string { return "proto" }

// Invoke calls a unary method by its full name.
func (s *Side) Invoke(ctx context.Context, method string, req, resp proto.Message, opts ...grpc.CallOption) error {
	return s.Conn.Invoke(ctx, method, req, resp, opts...)
}
