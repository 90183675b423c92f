package status

import (
	"encoding/json"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodesWholePage is how many whole Nodes one page asks for; with the images that they list each has 10 to 30 kB.
const nodesWholePage = 100

// readNodeView reads one Node of a list, or alone. Any JSON may be passed.
func readNodeView(d *json.Decoder) (NodeView, error) {
	var node struct {
		Metadata struct {
			Name              string            `json:"name"`
			UID               string            `json:"uid"`
			ResourceVersion   string            `json:"resourceVersion"`
			Labels            map[string]string `json:"labels"`
			Annotations       map[string]string `json:"annotations"`
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec struct {
			ProviderID string         `json:"providerID"`
			Taints     []corev1.Taint `json:"taints"`
		} `json:"spec"`
		Status struct {
			Conditions []struct {
				Type               corev1.NodeConditionType `json:"type"`
				Status             corev1.ConditionStatus   `json:"status"`
				LastTransitionTime metav1.Time              `json:"lastTransitionTime"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := d.Decode(&node); err != nil {
		return NodeView{}, err
	}
	m := &node.Metadata
	if m.Name == "" || m.UID == "" || m.ResourceVersion == "" {
		return NodeView{}, errors.New("a Node has no name, no uid or no resourceVersion")
	}
	n := NodeView{
		Name: m.Name, UID: m.UID, Version: m.ResourceVersion, Labels: m.Labels, Annotations: m.Annotations, ProviderID: node.Spec.ProviderID,
		Taints: node.Spec.Taints, Deleted: m.DeletionTimestamp != nil,
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Ready, n.ReadySince = c.Status, c.LastTransitionTime.Time
		}
	}
	return n, nil
}

// zone is the Node's zone with its region, "" where it names none.
func (n *NodeView) zone() string {
	zone := n.Labels[corev1.LabelTopologyZone]
	if zone == "" {
		return ""
	}
	return n.Labels[corev1.LabelTopologyRegion] + "/" + zone
}

// A census is what is counted of all Nodes.
type census struct {
	counts    ClusterCounts
	zones     map[string][2]int // total and unhealthy Nodes of each zone
	readyOnes []string
}

func takeCensus(nodes []NodeView) census {
	c := census{zones: map[string][2]int{}}
	c.counts.Total = len(nodes)
	for i := range nodes {
		n := &nodes[i]
		zone := c.zones[n.zone()]
		zone[0]++
		switch {
		case n.Ready != corev1.ConditionTrue:
			c.counts.Unhealthy++
			zone[1]++
		default:
			c.readyOnes = append(c.readyOnes, n.Name)
			if n.etcd() && !n.Deleted {
				c.counts.ReadyEtcd++
			}
		}
		c.zones[n.zone()] = zone
	}
	return c
}

// of are the counts for a decision about one Node.
func (c *census) of(n *NodeView) ClusterCounts {
	counts := c.counts
	if n.zone() != "" {
		zone := c.zones[n.zone()]
		counts.ZoneTotal, counts.ZoneUnhealthy = zone[0], zone[1]
	}
	return counts
}

// deleted takes one unhealthy Node out of the count.
func (c *census) deleted(n *NodeView) {
	c.counts.Total--
	c.counts.Unhealthy--
	zone := c.zones[n.zone()]
	c.zones[n.zone()] = [2]int{zone[0] - 1, zone[1] - 1}
}

// listPause is how long after one list of whole Nodes the next one follows at the earliest: 15 s, and in large clusters more, so that an owner reads no more
// than 80 Nodes in a second.
func listPause(nodes int) time.Duration {
	return max(15*time.Second, time.Duration(nodes)*time.Second/80)
}
