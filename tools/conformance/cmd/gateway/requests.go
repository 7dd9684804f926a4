package main

import "encoding/base64"

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func post(path, body string) request { return request{path: "/v3/" + path, body: body} }

func malformed(body string) request { return request{path: "/v3/kv/put", body: body, statusOnly: true} }

func get(path string) request { return request{path: path, get: true} }

var (
	keyA = `"key":"` + b64("a") + `"`
	keyB = `"key":"` + b64("b") + `"`
	all  = `"key":"AA==","range_end":"AA=="`
)

// requests are sent in this order.
var requests = []request{
	get("/health"), get("/health?serializable=true"), get("/health?exclude=NOSPACE"), get("/livez"), get("/readyz"),
	get("/livez?verbose"), get("/readyz?verbose"), get("/livez/serializable_read"), get("/readyz/no_such"),
	get("/readyz?exclude=non_learner&verbose"),
	{path: "/health", verb: "POST"}, {path: "/version", verb: "POST"},
	{path: "/metrics", get: true, statusOnly: true}, get("/nothing"), get("/v3/kv/range"), get("/"),
	{path: "/debug/vars", get: true, statusOnly: true}, {path: "/debug/pprof/heap", get: true, statusOnly: true},

	post("kv/put", `{`+keyA+`,"value":"`+b64("1")+`"}`),
	post("kv/put", `{`+keyA+`,"value":"`+b64("2")+`","prev_kv":true}`),
	post("kv/put", `{`+keyB+`}`),
	post("kv/put", `{}`), post("kv/put", ``),
	// The texts about malformed JSON are those of Go's library: only the status is compared.
	malformed(`{`), malformed(`[]`), malformed(`{"key":5}`), malformed(`{"key":"not base64!"}`),
	malformed(`{` + keyA + `,"prev_kv":true,"prevKv":true}`),
	post("kv/put", `{"no_such_field":1,`+keyA+`}`),
	post("kv/put", `{`+keyA+`,"lease":"123"}`), post("kv/put", `{`+keyA+`,"lease":123}`),
	post("kv/put", `{`+keyA+`,"ignoreValue":true}`), post("kv/put", `{`+keyA+`,"ignore_value":true}`),
	post("kv/range", `{`+keyA+`}`), post("kv/range", `{`+all+`}`), post("kv/range", `{`+all+`,"limit":"1"}`),
	post("kv/range", `{`+all+`,"limit":1}`),
	post("kv/range", `{`+all+`,"sort_order":"DESCEND","sort_target":"MOD"}`),
	post("kv/range", `{`+all+`,"sort_order":2,"sort_target":3}`), post("kv/range", `{`+all+`,"sort_order":"NOTHING"}`),
	post("kv/range", `{`+all+`,"sort_order":9}`),
	post("kv/range", `{`+all+`,"count_only":true}`), post("kv/range", `{`+all+`,"keys_only":true}`),
	post("kv/range", `{`+keyA+`,"revision":"99"}`), post("kv/range", `{`+keyA+`,"revision":"-1"}`),
	post("kv/range", `{"key":"`+b64("absent")+`"}`), post("kv/range", `{`+keyA+`,"serializable":true}`),
	post("kv/deleterange", `{`+keyB+`,"prev_kv":true}`), post("kv/deleterange", `{`+keyB+`}`),
	post("kv/txn", `{"compare":[{"target":"VERSION",`+keyA+`,"result":"GREATER","version":"0"}],`+
		`"success":[{"request_put":{`+keyA+`,"value":"`+b64("3")+`"}},{"request_range":{`+keyA+`}}],`+
		`"failure":[{"request_delete_range":{`+keyA+`}}]}`),
	post("kv/txn", `{"compare":[{"target":"VALUE",`+keyA+`,"value":"`+b64("9")+`"}],`+
		`"failure":[{"request_txn":{"success":[{"requestRange":{`+keyA+`}}]}}]}`),
	post("kv/txn", `{}`), post("kv/txn", `{"success":[{"request_put":{`+keyA+`}},{"request_put":{`+keyA+`}}]}`),
	post("kv/compaction", `{"revision":"3"}`), post("kv/compaction", `{"revision":"3"}`),
	post("kv/compaction", `{"revision":"4","physical":true}`), post("kv/range", `{`+keyA+`,"revision":"2"}`),
	post("kv/rangestream", `{`+keyA+`}`), {path: "/v3beta/kv/range", body: `{` + keyA + `}`},
	{path: "/v3alpha/kv/range", body: `{` + keyA + `}`}, {path: "/v3/kv/range", verb: "PUT", body: `{` + keyA + `}`},

	post("lease/grant", `{"TTL":"500","ID":"77"}`), post("lease/grant", `{"TTL":500}`), post("lease/grant", `{"TTL":"500","ID":"77"}`),
	post("kv/put", `{"key":"`+b64("l")+`","lease":"77"}`), post("lease/timetolive", `{"ID":"77","keys":true}`),
	post("kv/lease/timetolive", `{"ID":"78"}`), {path: "/v3/lease/keepalive", body: `{"ID":"77"}`, lines: 1},
	post("lease/revoke", `{"ID":"77"}`), post("kv/lease/revoke", `{"ID":"77"}`), post("lease/leases", `{}`),
	post("kv/lease/leases", `{}`),

	{path: "/v3/watch", body: `{"create_request":{` + keyA + `,"start_revision":"5"}}`, lines: 2},
	{path: "/v3/watch", body: `{"create_request":{` + keyA + `,"start_revision":"-5"}}`, lines: 1},
	{path: "/v3/watch", body: `{"create_request":{` + keyA + `,"start_revision":"1"}}`, lines: 2},

	post("cluster/member/list", `{}`), post("cluster/member/list", `{"linearizable":true}`),
	post("cluster/member/remove", `{"ID":"123"}`), post("cluster/member/promote", `{"ID":"123"}`),
	post("cluster/member/add", `{"peerURLs":["nonsense"]}`), post("cluster/member/update", `{"ID":"123","peerURLs":["http://a:1"]}`),
	post("maintenance/status", `{}`), post("maintenance/alarm", `{"action":"GET","alarm":"NONE"}`),
	post("maintenance/hash", `{}`), post("maintenance/hashkv", `{}`), post("maintenance/hashkv", `{"revision":"1000"}`),
	post("maintenance/defragment", `{}`), post("maintenance/transfer-leadership", `{"targetID":"5"}`),
	post("maintenance/downgrade", `{"action":"VALIDATE","version":"3.6"}`),
	{path: "/v3/maintenance/snapshot", body: `{}`, statusOnly: true},

	post("auth/status", `{}`), post("auth/enable", `{}`), post("auth/authenticate", `{"name":"root","password":"pw"}`),
	post("auth/role/add", `{"name":"r"}`), post("auth/role/add", `{"name":"r"}`), post("auth/role/get", `{"role":"r"}`),
	post("auth/role/grant", `{"name":"r","perm":{"permType":"READWRITE",`+keyA+`}}`), post("auth/role/get", `{"role":"r"}`),
	post("auth/role/list", `{}`), post("auth/user/add", `{"name":"u","password":"pw"}`), post("auth/user/list", `{}`),
	post("auth/user/grant", `{"user":"u","role":"r"}`), post("auth/user/get", `{"name":"u"}`),
	post("auth/user/revoke", `{"name":"u","role":"r"}`), post("auth/user/changepw", `{"name":"u","password":"x"}`),
	post("auth/user/delete", `{"name":"u"}`), post("auth/role/revoke", `{"role":"r",`+keyA+`}`),
	post("auth/role/delete", `{"role":"r"}`), post("auth/role/delete", `{"role":"r"}`),

	// The keys of campaigns and locks hold the id of a lease that the server picks.
	{path: "/v3/election/campaign", body: `{"name":"` + b64("e") + `","value":"` + b64("v") + `"}`, statusOnly: true},
	post("election/leader", `{"name":"`+b64("none")+`"}`),
	post("lock/unlock", `{"key":"`+b64("nothing")+`"}`),
	{path: "/v3/lock/lock", body: `{"name":"` + b64("m") + `"}`, statusOnly: true},
	get("/version"),
}
