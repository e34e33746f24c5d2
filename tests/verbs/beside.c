/*
 * Uses the stand-in's fake0 and softib0 in turns, and looks at every step at who was called. Linked to the stand-in; softib0 comes
 * from LD_PRELOAD. `alone`: without it, to show that the stand-in is what it seems.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *fake_calls(void);

#define SIZE 65536

static void expect(int line, const char *wanted)
{
	const char *calls = fake_calls();

	if (strcmp(calls, wanted)) {
		printf("line %d: the real library saw `%s`, not `%s`\n", line, calls, wanted);
		exit(1);
	}
}
#define REAL_SAW(calls) expect(__LINE__, calls)

#define CHECK(what)                                                            \
	do {                                                                   \
		if (!(what)) {                                                 \
			printf("line %d: not true: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1);                                               \
		}                                                              \
	} while (0)

/* A device's objects, made and used by the same calls for both. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	char *bytes;
};

static struct end make(struct ibv_device *device)
{
	struct end end = { .bytes = calloc(2, SIZE) };

	CHECK(end.context = ibv_open_device(device));
	CHECK(end.context->device == device);
	CHECK(end.pd = ibv_alloc_pd(end.context));
	CHECK(end.pd->context == end.context);
	CHECK(end.mr = (ibv_reg_mr)(end.pd, end.bytes, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(end.mr->context == end.context && end.mr->length == 2 * SIZE);
	CHECK(end.cq = ibv_create_cq(end.context, 20, &end, NULL, 0));
	CHECK(end.cq->context == end.context && end.cq->cqe >= 20);
	return end;
}

static void step(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	int result = ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);

	CHECK(result == 0);
}

/* A queue pair that is connected to itself carries a message. */
static void loop(struct end *end)
{
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC };
	struct ibv_sge from = { (uintptr_t)end->bytes, SIZE, end->mr->lkey };
	struct ibv_sge to = { (uintptr_t)end->bytes + SIZE, SIZE, end->mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_port_attr port;
	struct ibv_wc wc;
	struct ibv_qp *qp;

	init.cap = (struct ibv_qp_cap){ .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	CHECK(qp = ibv_create_qp(end->pd, &init));
	CHECK(ibv_query_port(end->context, 1, &port) == 0);
	step(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
	     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	step(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
				       .ah_attr = { .dlid = port.lid, .port_num = 1 } },
	     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		     IBV_QP_MIN_RNR_TIMER);
	step(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 },
	     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	for (int i = 0; i < SIZE; i++)
		end->bytes[i] = (char)(i * 7);
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
	for (int seen = 0; seen < 2;) {
		int some = ibv_poll_cq(end->cq, 1, &wc);

		CHECK(some >= 0 && (some == 0 || wc.status == IBV_WC_SUCCESS));
		seen += some;
	}
	CHECK(memcmp(end->bytes, end->bytes + SIZE, SIZE) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void alone(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(count == 1 && !list[1] && !strcmp(ibv_get_device_name(list[0]), "fake0"));
	REAL_SAW("get_device_list get_device_name ");
	ibv_free_device_list(list);
	printf("PASS alone\n");
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_async_event event = { .event_type = IBV_EVENT_CQ_ERR };
	struct end fake, soft;
	struct ibv_wc wc;
	int count = 0;

	if (argc > 1 && !strcmp(argv[1], "alone")) {
		alone();
		return 0;
	}
	CHECK(ibv_fork_init() == 0);
	REAL_SAW("fork_init ");
	CHECK(list = ibv_get_device_list(&count));
	REAL_SAW("get_device_list ");
	CHECK(count == 2 && !list[2]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "fake0"));
	REAL_SAW("get_device_name ");
	CHECK(!strcmp(ibv_get_device_name(list[1]), "softib0"));
	REAL_SAW("");

	soft = make(list[1]);
	REAL_SAW("");
	fake = make(list[0]);
	REAL_SAW("open_device alloc_pd reg_mr create_cq ");
	loop(&soft);
	REAL_SAW("");
	CHECK(ibv_poll_cq(fake.cq, 1, &wc) == 1 && wc.wr_id == 0xfa6e);
	REAL_SAW("poll_cq ");
	CHECK(ibv_poll_cq(soft.cq, 1, &wc) == 0);
	CHECK(ibv_create_qp(fake.pd, NULL) == NULL && errno == EPERM);
	REAL_SAW("create_qp ");
	event.element.cq = fake.cq;
	ibv_ack_async_event(&event);
	REAL_SAW("ack_cq_err ");

	ibv_free_device_list(list);
	REAL_SAW("free_device_list ");
	CHECK(ibv_dereg_mr(fake.mr) == EBUSY && ibv_destroy_cq(fake.cq) == 0 && ibv_dealloc_pd(fake.pd) == 0);
	CHECK(ibv_close_device(fake.context) == 0);
	REAL_SAW("dereg_mr destroy_cq dealloc_pd close_device ");
	CHECK(ibv_dereg_mr(soft.mr) == 0 && ibv_destroy_cq(soft.cq) == 0 && ibv_dealloc_pd(soft.pd) == 0);
	CHECK(ibv_close_device(soft.context) == 0);
	REAL_SAW("");
	free(fake.bytes);
	free(soft.bytes);
	printf("PASS beside\n");
	return 0;
}
