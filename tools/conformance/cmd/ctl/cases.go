package main

import "strings"

type caseGroup struct {
	name  string
	long  bool
	cases []testCase
}

// run splits a command at spaces.
func do(command string) testCase { return testCase{args: strings.Fields(command)} }

func (c testCase) with(change func(*testCase)) testCase {
	change(&c)
	return c
}

func (c testCase) input(stdin string) testCase {
	c.stdin = stdin
	return c
}

func (c testCase) must(want string) testCase {
	c.want = want
	return c
}

func (c testCase) keep(name, expression string) testCase {
	c.capture = map[string]string{name: expression}
	return c
}

const leaseExpression = `lease ([0-9a-f]+) granted`

var groups = []caseGroup{
	{name: "kv", cases: []testCase{
		do("put a 1").must("OK"),
		do("put a 2 --prev-kv"),
		do("put b").input("from stdin"),
		do("put empty --").input(""),
		do("put k/1 v1"), do("put k/2 v2"), do("put k/3 v3"), do("put k/2 v22"),
		do("put a --ignore-value"), do("put a x --ignore-lease"),
		do("put absent --ignore-value"),
		do("put a 1 --lease=123"),
		do("put"), do("put a b c"),
		do("get a").must("x"),
		do("get a -w json"), do("get a -w fields"), do("get a -w table"),
		do("get absent"),
		do("get k/ --prefix"), do("get k/ --prefix --keys-only"), do("get k/ --prefix --print-value-only"),
		do("get k/ --prefix --count-only -w fields"), do("get k/ --prefix --limit=2 -w json"),
		do("get k/1 k/3"), do("get k/2 --from-key"), do("get --prefix --keys-only").with(func(c *testCase) {
			c.args = append(c.args, "")
		}),
		do("get k/ --prefix --sort-by=MODIFY --order=DESCEND"), do("get k/ --prefix --sort-by=VERSION"),
		do("get k/ --prefix --sort-by=VALUE --order=DESCEND"), do("get k/ --prefix --sort-by=CREATE --order=ASCEND"),
		do("get k/ --prefix --sort-by=KEY --order=DESCEND"), do("get k/ --prefix --sort-by=nothing"),
		do("get k/ --prefix --consistency=s"), do("get k/ --prefix --stream"),
		do("get k/ --prefix --stream --sort-by=MODIFY --order=DESCEND"),
		do("get a --rev=2"), do("get a --rev=1000"), do("get a --rev=-1"),
		do("get k/ --prefix --min-mod-rev=6"), do("get k/ --prefix --max-create-rev=6"),
		do("get k/ --prefix --max-mod-rev=7 --min-create-rev=3 --keys-only"),
		do("get a -w protobuf").with(func(c *testCase) { c.ignoreOutput = true }),
		do("del k/1 --prev-kv"), do("del absent"), do("del k/ --prefix --prev-kv"), do("del a c --range"),
		do("put z/1 1"), do("del z --from-key"),
		do("del"),
	}},
	{name: "txn", cases: []testCase{
		do("put t 1"),
		do("txn").input("value(\"t\") = \"1\"\n\nput t 2\nget t\n\nget t\n\n").must("SUCCESS"),
		do("txn").input("mod(\"t\") < \"1\"\n\nput t 3\n\nget t\nput u 1\n\n").must("FAILURE"),
		do("txn -i").input("ver(\"t\") > \"0\"\n\ndel t\n\n\n"),
		do("txn -w json").input("create(\"u\") > \"0\"\n\nput u 2\nget u\n\n\n"),
		do("txn -w fields").input("ver(\"u\") > \"1\"\n\nget u\n\n\n"),
		do("txn").input("\nput d 1\nput d 2\n\n\n"),
		do("txn").input("nonsense\n\n\n\n"),
	}},
	{name: "watch", cases: []testCase{
		do("put w/1 a"), do("put w/1 b"), do("del w/1"),
		do("watch w/ --prefix --rev=1").with(func(c *testCase) {
			c.untilLines, c.meanwhile, c.afterLines = 12, [][]string{{"put", "w/2", "c"}}, 9
		}),
		do("watch w/ --prefix --rev=1 --prev-kv -w json").with(func(c *testCase) {
			// How many events come in a response is the server's choice.
			c.untilLines, c.ignoreOutput = 1, true
		}),
		do("watch -i").with(func(c *testCase) {
			c.stdin = "watch w/1 --rev=1\nwatch w/2 --rev=1 --prev-kv\n"
			c.untilLines, c.sortLines = 12, true
		}),
		do("watch w/2 --rev=1 -- echo seen").with(func(c *testCase) { c.untilLines = 4 }),
	}},
	{name: "hashkv", cases: []testCase{
		do("put h 1"), do("put h 2"), do("del h"), do("put h 3"), do("put i 1"), do("compaction 4 --physical"),
		do("endpoint hashkv"), do("endpoint hashkv -w json"), do("endpoint hashkv --rev=5 -w json"),
		do("endpoint hashkv --rev=1"), do("endpoint hashkv --rev=100000"),
	}},
	{name: "lease", cases: []testCase{
		do("lease grant 500").keep("LEASE", leaseExpression),
		do("lease grant 9000000001"), do("lease grant nonsense"),
		do("put l/1 v --lease=$LEASE"), do("put l/2 v --lease=$LEASE"),
		do("get l/1 -w json"),
		do("lease timetolive $LEASE"), do("lease timetolive $LEASE --keys -w json").with(func(c *testCase) {
			// The order of keys is random in etcd, and the ids are masked; the plain form below is compared.
			c.ignoreOutput = true
		}),
		do("lease timetolive 7b"),
		do("lease list"), do("lease list -w json"),
		do("lease keep-alive --once $LEASE"), do("lease keep-alive --once 7b"),
		do("lease revoke $LEASE"), do("lease revoke $LEASE"), do("lease timetolive $LEASE"),
		do("get l/ --prefix"), do("lease list"),
	}},
	{name: "maintenance", cases: []testCase{
		do("put m 1"), do("put m 2"), do("put m 3"),
		do("compaction 3"), do("compaction 3"), do("compaction 9999"), do("compaction 4 --physical"),
		do("get m --rev=2"),
		do("endpoint health"), do("endpoint health -w json"), do("endpoint health --cluster"),
		do("endpoint status -w json"), do("endpoint status -w fields"), do("endpoint status").with(func(c *testCase) {
			c.ignoreOutput = true
		}),
		do("endpoint status -w table").with(func(c *testCase) { c.ignoreOutput = true }),
		do("alarm list"), do("alarm disarm"), do("defrag"), do("defrag --cluster"),
		do("member list"), do("member list -w json"), do("member list -w fields"), do("member list -w table"),
		do("move-leader 1234"),
		do("downgrade validate 3.6"), do("downgrade validate 3.1"),
		do("snapshot save $HOME/snapshot.db").with(func(c *testCase) { c.ignoreOutput = true }),
		do("version"),
	}},
	{name: "members", cases: []testCase{
		do("member add learner --learner --peer-urls=http://127.0.0.1:1").keep("LEARNER", `Member ([0-9a-f]+) added`),
		// Members come in the order of their ids.
		do("member list").with(func(c *testCase) { c.sortLines = true }), do("member promote $LEARNER"),
		do("member update $LEARNER --peer-urls=http://127.0.0.1:2"),
		do("member remove $LEARNER"), do("member remove $LEARNER"), do("member list"),
		do("member add nothing"), do("member add nothing --peer-urls=nonsense"),
	}},
	{name: "recipes", cases: []testCase{
		do("lock name echo held").must("held"),
		do("lock name false"),
		do("lock other").with(func(c *testCase) { c.untilLines, c.ignoreOutput = 1, true }),
		do("elect post first").with(func(c *testCase) { c.untilLines, c.ignoreOutput = 2, true }),
		do("elect -l post").with(func(c *testCase) {
			c.untilLines, c.ignoreOutput = 2, true
			c.meanwhile = [][]string{{"put", "post/1234", "second"}}
		}),
		do("put src/1 one"), do("put src/2 two"),
		do("make-mirror --prefix=src/ --dest-prefix=dst/ $ENDPOINT").with(func(c *testCase) {
			c.meanwhile, c.awaitKey, c.ignoreOutput = [][]string{{"put", "src/3", "three"}}, "dst/3", true
		}),
		do("get dst/ --prefix"),
	}},
	{name: "auth", cases: []testCase{
		do("role add reader"), do("role add reader"), do("role grant-permission reader read k/ --prefix"),
		do("role grant-permission reader readwrite one"), do("role get reader"), do("role list"),
		do("user add root:rootpw"), do("user add plain:plainpw"), do("user add plain:plainpw"),
		do("user grant-role plain reader"), do("user grant-role plain nothing"), do("user get plain"),
		do("user get plain --detail"), do("user list"), do("auth status"), do("put k/1 v"),
		do("auth enable"), do("auth status --user root:rootpw"),
		do("get k/1"), do("get k/1 --user plain:plainpw"), do("get k/1 --user plain:wrong"),
		do("put k/1 x --user plain:plainpw"), do("put one x --user plain:plainpw"),
		do("get other --user plain:plainpw"), do("user list --user plain:plainpw"),
		do("role revoke-permission reader one --user root:rootpw"), do("put one x --user plain:plainpw"),
		do("endpoint health --user plain:plainpw"), do("compaction 2 --user plain:plainpw"),
		do("auth disable --user root:rootpw"), do("get k/1"),
		do("user revoke-role plain reader"), do("user passwd plain --interactive=false").input("newpw\n"),
		do("user delete plain"), do("role delete reader"), do("user delete plain"), do("role get reader"),
	}},
	{name: "check", long: true, cases: []testCase{
		do("check perf --load=s").with(func(c *testCase) { c.long, c.ignoreOutput = true, true }),
		do("check datascale --load=s --auto-compact --auto-defrag").with(func(c *testCase) {
			c.long, c.ignoreOutput = true, true
		}),
	}},
}
