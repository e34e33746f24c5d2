/*
 * A stand-in for a real libibverbs.so.1: one device, fake0, whose functions note that they were called. Built with the symbol
 * versions of the real one (fake.map), it is what libsoftib-preload.so has to leave in peace.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char calls[4096];

/* What was called since the last look, in order, separated by blanks. */
const char *fake_calls(void)
{
	static char seen[sizeof(calls)];

	strcpy(seen, calls);
	calls[0] = 0;
	return seen;
}

static void note(const char *call)
{
	strcat(calls, call);
	strcat(calls, " ");
}

static struct ibv_device device = { .node_type = IBV_NODE_CA, .name = "fake0", .dev_name = "fake0" };
static struct ibv_context context = { .device = &device };

static int fake_poll(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	(void)cq, (void)room;
	note("poll_cq");
	wc->wr_id = 0xfa6e;
	return 1;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	note("get_device_list");
	list[0] = &device;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	note("free_device_list");
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *of)
{
	note("get_device_name");
	return of->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
	note(of == &device ? "open_device" : "open_foreign_device");
	context.ops.poll_cq = fake_poll;
	return &context;
}

int ibv_close_device(struct ibv_context *of)
{
	note(of == &context ? "close_device" : "close_foreign_device");
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *of)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	note("alloc_pd");
	pd->context = of;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	note("dealloc_pd");
	free(pd);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	note("reg_mr");
	*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = access };
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	note("dereg_mr");
	free(mr);
	return EBUSY; /* an answer that only this library gives */
}

struct ibv_cq *ibv_create_cq(struct ibv_context *of, int cqe, void *own, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = calloc(1, sizeof(*cq));

	note("create_cq");
	*cq = (struct ibv_cq){ .context = of, .channel = channel, .cq_context = own, .cqe = cqe + vector };
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	note("destroy_cq");
	free(cq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	(void)pd, (void)init;
	note("create_qp");
	errno = EPERM;
	return NULL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	note("modify_qp");
	return EPERM;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	(void)qp;
	note("destroy_qp");
	return EPERM;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *of, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	(void)of, (void)port, (void)attr;
	note("query_port");
	return EPERM;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	note(event->event_type == IBV_EVENT_CQ_ERR ? "ack_cq_err" : "ack_async_event");
}

int ibv_fork_init(void)
{
	note("fork_init");
	return 0;
}
