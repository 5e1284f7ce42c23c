// The admin clients of franz-go and Sarama make ACLs, users and quotas, list and delete them; prints JSON.
// go-admin BROKERS USER PASSWORD
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The counts of ACLs, users and quotas after each step, and the error of a DENY.
type found struct {
	Acls, Users, Quotas []int
	Deny                string
}

func franz(brokers []string, user, password string) (told found) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	check(err)
	defer client.Close()
	admin := kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	acls := func() *kadm.ACLBuilder {
		return kadm.NewACLs().Allow("User:franz").AllowHosts("*").Topics("franz").
			ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kadm.OpRead, kadm.OpWrite)
	}
	list := func() {
		listed, err := admin.DescribeACLs(ctx, acls())
		check(err)
		count := 0
		for _, each := range listed {
			check(each.Err)
			count += len(each.Described)
		}
		told.Acls = append(told.Acls, count)
	}
	made, err := admin.CreateACLs(ctx, acls())
	check(err)
	for _, each := range made {
		check(each.Err)
	}
	list()
	denied, err := admin.CreateACLs(ctx, kadm.NewACLs().Deny("User:franz").DenyHosts("*").Topics("franz").
		ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpRead))
	check(err)
	told.Deny = fmt.Sprint(denied[0].Err)
	gone, err := admin.DeleteACLs(ctx, acls())
	check(err)
	for _, each := range gone {
		check(each.Err)
		for _, acl := range each.Deleted {
			check(acl.Err)
		}
	}
	list()

	users := func() {
		listed, err := admin.DescribeUserSCRAMs(ctx)
		check(err)
		count := 0
		for _, each := range listed {
			if each.User == "franz" {
				count += len(each.CredInfos)
			}
		}
		told.Users = append(told.Users, count)
	}
	upsert := kadm.UpsertSCRAM{User: "franz", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "secret"}
	put, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{upsert})
	check(err)
	check(put.Error())
	users()
	drop := kadm.DeleteSCRAM{User: "franz", Mechanism: kadm.ScramSha512}
	put, err = admin.AlterUserSCRAMs(ctx, []kadm.DeleteSCRAM{drop}, nil)
	check(err)
	check(put.Error())
	users()

	name := "franz"
	entity := kadm.ClientQuotaEntity{{Type: "user", Name: &name}}
	quota := func(remove bool) {
		altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{
			{Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 1024, Remove: remove}}},
		})
		check(err)
		check(altered[0].Err)
		component := kadm.DescribeClientQuotaComponent{Type: "user", MatchName: &name, MatchType: kmsg.QuotasMatchTypeExact}
		listed, err := admin.DescribeClientQuotas(ctx, true, []kadm.DescribeClientQuotaComponent{component})
		check(err)
		told.Quotas = append(told.Quotas, len(listed))
	}
	quota(false)
	quota(true)
	return told
}

func ibm(brokers []string, user, password string) (told found) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLTypePlaintext
	config.Net.SASL.User, config.Net.SASL.Password = user, password
	admin, err := sarama.NewClusterAdmin(brokers, config)
	check(err)
	defer admin.Close()
	resource := sarama.Resource{
		ResourceType: sarama.AclResourceTopic, ResourceName: "sarama", ResourcePatternType: sarama.AclPatternLiteral,
	}
	acl := func(permission sarama.AclPermissionType) sarama.Acl {
		return sarama.Acl{
			Principal: "User:sarama", Host: "*", Operation: sarama.AclOperationRead, PermissionType: permission,
		}
	}
	principal := "User:sarama"
	filter := sarama.AclFilter{
		ResourceType: sarama.AclResourceAny, ResourcePatternTypeFilter: sarama.AclPatternAny, Principal: &principal,
		Operation: sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny,
	}
	list := func() {
		listed, err := admin.ListAcls(filter)
		check(err)
		count := 0
		for _, each := range listed {
			count += len(each.Acls)
		}
		told.Acls = append(told.Acls, count)
	}
	check(admin.CreateACL(resource, acl(sarama.AclPermissionAllow)))
	list()
	told.Deny = fmt.Sprint(admin.CreateACL(resource, acl(sarama.AclPermissionDeny)))
	_, err = admin.DeleteACL(filter, false)
	check(err)
	list()

	users := func() {
		listed, err := admin.DescribeUserScramCredentials(nil)
		check(err)
		count := 0
		for _, each := range listed {
			if each.User == "sarama" {
				count += len(each.CredentialInfos)
			}
		}
		told.Users = append(told.Users, count)
	}
	put, err := admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{{
		Name: "sarama", Mechanism: sarama.SCRAM_MECHANISM_SHA_256, Iterations: 4096,
		Salt: []byte("salt"), Password: []byte("secret"),
	}})
	check(err)
	if put[0].ErrorCode != sarama.ErrNoError {
		check(put[0].ErrorCode)
	}
	users()
	put, err = admin.DeleteUserScramCredentials([]sarama.AlterUserScramCredentialsDelete{
		{Name: "sarama", Mechanism: sarama.SCRAM_MECHANISM_SHA_256},
	})
	check(err)
	if put[0].ErrorCode != sarama.ErrNoError {
		check(put[0].ErrorCode)
	}
	users()

	entity := []sarama.QuotaEntityComponent{{
		EntityType: sarama.QuotaEntityUser, MatchType: sarama.QuotaMatchExact, Name: "sarama",
	}}
	component := sarama.QuotaFilterComponent{
		EntityType: sarama.QuotaEntityUser, MatchType: sarama.QuotaMatchExact, Match: "sarama",
	}
	quota := func(remove bool) {
		op := sarama.ClientQuotasOp{Key: "consumer_byte_rate", Value: 2048, Remove: remove}
		check(admin.AlterClientQuotas(entity, op, false))
		listed, err := admin.DescribeClientQuotas([]sarama.QuotaFilterComponent{component}, true)
		check(err)
		told.Quotas = append(told.Quotas, len(listed))
	}
	quota(false)
	quota(true)
	return told
}

func main() {
	brokers := strings.Split(os.Args[1], ",")
	told := map[string]found{
		"franz":  franz(brokers, os.Args[2], os.Args[3]),
		"sarama": ibm(brokers, os.Args[2], os.Args[3]),
	}
	check(json.NewEncoder(os.Stdout).Encode(told))
}
