package gen

import (
	"math/rand/v2"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"garboard/tools/conformance/internal/ops"
)

// Auth chooses operations on users, roles and permissions, and requests under the tokens of several users.
type Auth struct {
	Generator
	queue []ops.Op
}

// NewAuth begins with users, roles and auth enabled, so that most requests meet a permission.
func NewAuth(seed uint64, revision func() int64) *Auth {
	a := &Auth{}
	a.dice = rand.New(rand.NewPCG(seed, seed+1))
	a.revisionNow = revision
	a.queue = a.setUp()
	return a
}

const (
	authRoot     = "root"
	authPassword = "pw"
)

var (
	authUsers = []string{authRoot, "one", "two", "three"}
	authRoles = []string{authRoot, "reader", "writer", "both"}
	authKeys  = []string{"a", "b", "c", "k/1", "k/2", "z"}
)

func authCall(user, method string, req ops.Message) ops.Op {
	return &ops.Unary{Method: "/etcdserverpb." + method, Req: req, User: user}
}

func permission(kind authpb.Permission_Type, key, end string) *authpb.Permission {
	return &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}
}

func (a *Auth) setUp() []ops.Op {
	call := func(method string, req ops.Message) ops.Op { return authCall("", "Auth/"+method, req) }
	grant := func(role string, kind authpb.Permission_Type, key, end string) ops.Op {
		return call("RoleGrantPermission", &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: permission(kind, key, end)})
	}
	list := []ops.Op{
		call("AuthEnable", &pb.AuthEnableRequest{}),
		call("Authenticate", &pb.AuthenticateRequest{Name: "one", Password: authPassword}),
		call("UserAdd", &pb.AuthUserAddRequest{Name: authRoot, Password: authPassword}),
		call("AuthEnable", &pb.AuthEnableRequest{}),
		call("RoleAdd", &pb.AuthRoleAddRequest{Name: authRoot}),
		call("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: authRoot, Role: authRoot}),
	}
	for _, name := range authUsers[1:] {
		list = append(list, call("UserAdd", &pb.AuthUserAddRequest{Name: name, Password: authPassword}))
	}
	for _, name := range authRoles[1:] {
		list = append(list, call("RoleAdd", &pb.AuthRoleAddRequest{Name: name}))
	}
	list = append(list,
		grant("reader", authpb.READ, "a", "c"), grant("writer", authpb.WRITE, "b", ""),
		grant("both", authpb.READWRITE, "k/", "k0"),
		call("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: "one", Role: "reader"}),
		call("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: "one", Role: "writer"}),
		call("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: "two", Role: "both"}),
		call("AuthStatus", &pb.AuthStatusRequest{}),
		call("AuthEnable", &pb.AuthEnableRequest{}), call("AuthEnable", &pb.AuthEnableRequest{}),
		authCall("", "KV/Range", &pb.RangeRequest{Key: []byte("a")}),
	)
	return append(append(list, a.logIn()...), a.tour()...)
}

// tour asks once for what random choices meet seldom.
func (a *Auth) tour() []ops.Op {
	key := []byte("z")
	return []ops.Op{
		authCall(authRoot, "Lease/LeaseGrant", &pb.LeaseGrantRequest{ID: 1, TTL: 100000}),
		authCall(authRoot, "KV/Put", &pb.PutRequest{Key: key, Value: key, Lease: 1}),
		authCall("one", "Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: 1, Keys: true}),
		authCall("one", "Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: 1}),
		authCall("one", "Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: 1}),
		authCall("one", "Lease/LeaseLeases", &pb.LeaseLeasesRequest{}),
		authCall("one", "KV/Put", &pb.PutRequest{Key: []byte("b"), Lease: 1}),
		authCall("one", "KV/Put", &pb.PutRequest{Key: []byte("b"), PrevKv: true}),
		&ops.LoneKeepAlive{ID: 1, User: "one"},
		&ops.LoneKeepAlive{ID: 1},
		&ops.LoneKeepAlive{ID: 77},
		authCall("one", "Maintenance/Alarm", &pb.AlarmRequest{}),
		authCall("one", "Maintenance/Alarm", &pb.AlarmRequest{
			Action: pb.AlarmRequest_DEACTIVATE, MemberID: ops.SelfMember, Alarm: pb.AlarmType_NOSPACE}),
		authCall("one", "Auth/UserGet", &pb.AuthUserGetRequest{Name: "one"}),
		authCall("one", "Auth/UserGet", &pb.AuthUserGetRequest{Name: "two"}),
		authCall("one", "Auth/RoleGet", &pb.AuthRoleGetRequest{Role: "reader"}),
		authCall("one", "Auth/RoleGet", &pb.AuthRoleGetRequest{Role: "both"}),
		authCall("one", "KV/Compact", &pb.CompactionRequest{Revision: 1}),
		authCall("one", "KV/Range", &pb.RangeRequest{Key: key}),
		authCall("one", "KV/DeleteRange", &pb.DeleteRangeRequest{Key: key}),
		authCall("one", "KV/DeleteRange", &pb.DeleteRangeRequest{Key: []byte("b")}),
		authCall("one", "KV/Txn", &pb.TxnRequest{Failure: []*pb.RequestOp{opPut(&pb.PutRequest{Key: key})}}),
		authCall("one", "KV/Txn", &pb.TxnRequest{Success: []*pb.RequestOp{opPut(&pb.PutRequest{Key: []byte("b")})}}),
		&ops.RangeStream{Req: &pb.RangeRequest{Key: key}, User: "one"},
		&ops.RangeStream{Req: &pb.RangeRequest{Key: []byte("a")}, User: "one"},
		&ops.WatchOnce{Req: &pb.WatchCreateRequest{Key: key}, User: "one"},
		&ops.WatchOnce{Req: &pb.WatchCreateRequest{Key: []byte("a")}, User: "one"},
		&ops.WatchOnce{Req: &pb.WatchCreateRequest{Key: key}, User: ops.BadToken},
		&ops.WatchOnce{Req: &pb.WatchCreateRequest{Key: key}},
		authCall("one", "Maintenance/Status", &pb.StatusRequest{}),
		authCall("", "Auth/AuthStatus", &pb.AuthStatusRequest{}),
		authCall("one", "Auth/UserList", &pb.AuthUserListRequest{}),
		authCall(authRoot, "Auth/RoleAdd", &pb.AuthRoleAddRequest{}),
		authCall(authRoot, "Auth/RoleAdd", &pb.AuthRoleAddRequest{Name: "both"}),
		authCall(authRoot, "Auth/UserRevokeRole", &pb.AuthUserRevokeRoleRequest{Name: "one", Role: "both"}),
		authCall(authRoot, "Auth/RoleRevokePermission", &pb.AuthRoleRevokePermissionRequest{Role: "both", Key: key}),
		authCall(authRoot, "Auth/RoleGrantPermission", &pb.AuthRoleGrantPermissionRequest{Name: "both"}),
		authCall(authRoot, "Auth/UserDelete", &pb.AuthUserDeleteRequest{Name: authRoot}),
		authCall(authRoot, "Auth/RoleDelete", &pb.AuthRoleDeleteRequest{Role: authRoot}),
		authCall(authRoot, "Auth/UserRevokeRole", &pb.AuthUserRevokeRoleRequest{Name: authRoot, Role: authRoot}),
	}
}

// logIn gets a token for each user; one that does not exist is refused.
func (a *Auth) logIn() []ops.Op {
	var list []ops.Op
	for _, name := range authUsers {
		list = append(list, authCall("", "Auth/Authenticate", &pb.AuthenticateRequest{Name: name, Password: authPassword}))
	}
	return list
}

// Next is the next operation.
func (a *Auth) Next() ops.Op {
	if len(a.queue) == 0 {
		a.queue = a.choose()
	}
	op := a.queue[0]
	a.queue = a.queue[1:]
	return op
}

func (a *Auth) choose() []ops.Op {
	switch n := a.dice.IntN(100); {
	case n < 18:
		return a.afterChange(a.userOp())
	case n < 34:
		return []ops.Op{a.roleOp()}
	case n < 40:
		return a.logIn()
	case n < 42:
		return []ops.Op{authCall("", "Auth/Authenticate", &pb.AuthenticateRequest{
			Name: a.user(), Password: pick(&a.Generator, []string{"wrong", "", authPassword})})}
	case n < 43:
		// A switch off and on again needs new tokens, and root as it was.
		return append([]ops.Op{
			authCall(authRoot, "Auth/AuthDisable", &pb.AuthDisableRequest{}),
			authCall("one", "KV/Range", &pb.RangeRequest{Key: []byte("z")}),
			authCall("", "Auth/Authenticate", &pb.AuthenticateRequest{Name: authRoot, Password: authPassword}),
			authCall("", "Auth/AuthEnable", &pb.AuthEnableRequest{}),
			authCall("one", "KV/Range", &pb.RangeRequest{Key: []byte("z")}),
		}, a.logIn()...)
	case n < 78:
		return []ops.Op{a.kvOp()}
	case n < 86:
		return []ops.Op{a.leaseOp()}
	case n < 91:
		return []ops.Op{a.watchOp()}
	default:
		return []ops.Op{a.adminOp()}
	}
}

// afterChange mostly logs a user in again whose tokens an operation has dropped.
func (a *Auth) afterChange(op ops.Op) []ops.Op {
	list := []ops.Op{op}
	changed, ok := op.(*ops.Unary).Req.(interface{ GetName() string })
	if grant, isGrant := op.(*ops.Unary).Req.(*pb.AuthUserGrantRoleRequest); isGrant && a.chance(70) {
		return append(list, authCall("", "Auth/Authenticate", &pb.AuthenticateRequest{Name: grant.User, Password: authPassword}))
	}
	if ok && a.chance(70) {
		list = append(list,
			authCall("", "Auth/Authenticate", &pb.AuthenticateRequest{Name: changed.GetName(), Password: authPassword}))
	}
	return list
}

func (a *Auth) user() string {
	return pick(&a.Generator, []string{authRoot, "one", "one", "two", "two", "three", "nobody", ""})
}

// caller is mostly root for what only root may do.
func (a *Auth) caller() string {
	if a.chance(75) {
		return authRoot
	}
	return pick(&a.Generator, []string{"one", "two", "three", "", ops.BadToken})
}

func (a *Auth) role() string {
	return pick(&a.Generator, append([]string{"nothing", ""}, authRoles...))
}

func (a *Auth) userOp() ops.Op {
	call := func(method string, req ops.Message) ops.Op { return authCall(a.caller(), "Auth/"+method, req) }
	name := a.user()
	switch a.dice.IntN(8) {
	case 0:
		return call("UserAdd", &pb.AuthUserAddRequest{Name: name, Password: authPassword})
	case 1:
		if a.chance(80) {
			name = "nopassword"
		}
		return call("UserAdd", &pb.AuthUserAddRequest{Name: name, Options: &authpb.UserAddOptions{NoPassword: true}})
	case 2:
		if a.chance(25) {
			return call("UserDelete", &pb.AuthUserDeleteRequest{Name: name})
		}
		return call("UserList", &pb.AuthUserListRequest{})
	case 3:
		return call("UserChangePassword", &pb.AuthUserChangePasswordRequest{Name: name, Password: authPassword})
	case 4, 5:
		return call("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: name, Role: a.role()})
	case 6:
		return call("UserRevokeRole", &pb.AuthUserRevokeRoleRequest{Name: name, Role: a.role()})
	default:
		return authCall(pick(&a.Generator, authUsers), "Auth/UserGet", &pb.AuthUserGetRequest{Name: name})
	}
}

func (a *Auth) roleOp() ops.Op {
	call := func(method string, req ops.Message) ops.Op { return authCall(a.caller(), "Auth/"+method, req) }
	name := a.role()
	key, end := a.authRange()
	switch a.dice.IntN(8) {
	case 0:
		return call("RoleAdd", &pb.AuthRoleAddRequest{Name: name})
	case 1:
		if a.chance(25) {
			return call("RoleDelete", &pb.AuthRoleDeleteRequest{Role: name})
		}
		return call("RoleList", &pb.AuthRoleListRequest{})
	case 2, 3, 4:
		req := &pb.AuthRoleGrantPermissionRequest{
			Name: name, Perm: permission(authpb.Permission_Type(a.dice.IntN(3)), string(key), string(end))}
		if a.chance(4) {
			req.Perm = nil
		}
		return call("RoleGrantPermission", req)
	case 5, 6:
		return call("RoleRevokePermission", &pb.AuthRoleRevokePermissionRequest{Role: name, Key: key, RangeEnd: end})
	default:
		return authCall(pick(&a.Generator, authUsers), "Auth/RoleGet", &pb.AuthRoleGetRequest{Role: name})
	}
}

func (a *Auth) authKey() []byte { return []byte(pick(&a.Generator, authKeys)) }

func (a *Auth) authRange() (key, end []byte) {
	switch n := a.dice.IntN(10); {
	case n < 5:
		return a.authKey(), nil
	case n < 7:
		return []byte("k/"), []byte("k0")
	case n < 9:
		return a.authKey(), a.authKey()
	default:
		return a.authKey(), []byte{0}
	}
}

func (a *Auth) kvOp() ops.Op {
	user := pick(&a.Generator, []string{authRoot, "one", "one", "two", "two", "three", "", ops.BadToken})
	key, end := a.authRange()
	switch n := a.dice.IntN(10); {
	case n < 3:
		return authCall(user, "KV/Range", &pb.RangeRequest{Key: key, RangeEnd: end, Serializable: a.chance(30)})
	case n < 6:
		return authCall(user, "KV/Put", a.authPut())
	case n < 7:
		return authCall(user, "KV/DeleteRange", &pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: a.chance(50)})
	case n < 8:
		return &ops.RangeStream{Req: &pb.RangeRequest{Key: key, RangeEnd: end}, User: user}
	default:
		return authCall(user, "KV/Txn", a.authTxn(0))
	}
}

func (a *Auth) authPut() *pb.PutRequest {
	put := &pb.PutRequest{Key: a.authKey(), Value: []byte{byte('a' + a.dice.IntN(20))}, PrevKv: a.chance(30)}
	if a.chance(20) {
		put.Lease = a.between(1, 3)
	}
	return put
}

func (a *Auth) authTxn(depth int) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	if a.chance(50) {
		c := &pb.Compare{Target: pb.Compare_VERSION, Result: pb.Compare_GREATER}
		c.Key, c.RangeEnd = a.authRange()
		req.Compare = append(req.Compare, c)
	}
	branch := func() []*pb.RequestOp {
		key, end := a.authRange()
		switch n := a.dice.IntN(5); {
		case n == 0:
			return []*pb.RequestOp{opPut(a.authPut())}
		case n == 1:
			return []*pb.RequestOp{opDelete(&pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: a.chance(30)})}
		case n == 2 && depth < 2:
			return []*pb.RequestOp{opTxn(a.authTxn(depth + 1))}
		case n == 3:
			return nil
		default:
			return []*pb.RequestOp{opRange(&pb.RangeRequest{Key: key, RangeEnd: end})}
		}
	}
	req.Success, req.Failure = branch(), branch()
	return req
}

func (a *Auth) leaseOp() ops.Op {
	user := pick(&a.Generator, []string{authRoot, "one", "two", "three", ""})
	id := a.between(1, 3)
	switch a.dice.IntN(5) {
	case 0:
		return authCall(user, "Lease/LeaseGrant", &pb.LeaseGrantRequest{ID: id, TTL: 100000})
	case 1:
		return authCall(user, "Lease/LeaseRevoke", &pb.LeaseRevokeRequest{ID: id})
	case 2:
		return authCall(user, "Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: id, Keys: a.chance(70)})
	case 3:
		return authCall(user, "Lease/LeaseLeases", &pb.LeaseLeasesRequest{})
	default:
		return &ops.LoneKeepAlive{ID: id, User: user}
	}
}

func (a *Auth) watchOp() ops.Op {
	req := &pb.WatchCreateRequest{}
	req.Key, req.RangeEnd = a.authRange()
	return &ops.WatchOnce{Req: req, User: pick(&a.Generator, []string{authRoot, "one", "two", "three", "", ops.BadToken})}
}

// adminOp is what only root may do, or what anybody may.
func (a *Auth) adminOp() ops.Op {
	user := pick(&a.Generator, []string{authRoot, "one", "three", "", ops.BadToken})
	switch a.dice.IntN(11) {
	case 0:
		return authCall(user, "KV/Compact", &pb.CompactionRequest{Revision: a.between(1, a.revisionNow())})
	case 1:
		return authCall(user, "Maintenance/Status", &pb.StatusRequest{})
	case 2:
		return authCall(user, "Cluster/MemberList", &pb.MemberListRequest{Linearizable: true})
	case 3:
		return authCall(user, "Maintenance/Alarm", &pb.AlarmRequest{})
	case 4:
		return authCall(user, "Maintenance/Alarm", &pb.AlarmRequest{
			Action: pb.AlarmRequest_DEACTIVATE, MemberID: ops.SelfMember, Alarm: pb.AlarmType_NOSPACE})
	case 5:
		return authCall(user, "Maintenance/Hash", &pb.HashRequest{})
	case 6:
		return authCall(user, "Auth/AuthStatus", &pb.AuthStatusRequest{})
	case 7:
		return authCall(user, "Cluster/MemberRemove", &pb.MemberRemoveRequest{ID: 12345})
	case 8:
		return authCall(user, "Maintenance/MoveLeader", &pb.MoveLeaderRequest{TargetID: 12345})
	case 9:
		return authCall(user, "Maintenance/Defragment", &pb.DefragmentRequest{})
	default:
		return authCall(user, "Auth/AuthEnable", &pb.AuthEnableRequest{})
	}
}
